// The layout of the shared plan: streams on the left, queries on the right, operators between. Pure functions.

const GAP = 8;
const COLUMN_GAP = 64;
const TOP = 20;
const LEFT = 14;
const WIDE = 176; // of a query; narrower if several are side by side
const NARROW = 104;
const SIZES = {
  query: { width: WIDE, height: 24 },
  stream: { width: 150, height: 40 },
  operator: { width: 208, height: 44 },
};

const sizeOf = (kind) => SIZES[kind] ?? SIZES.operator;

/** Returns for each id the ids next to it, along the edges or, `back`, against them. */
function neighbours(operators, edges, back) {
  const found = new Map(operators.map(({ id }) => [id, []]));
  for (const [from, to] of edges) (found.get(back ? to : from) ?? []).push(back ? from : to);
  return found;
}

/** Returns the column of each id: its longest distance from a stream; all queries are in the last column. */
function columnsOf(operators, before) {
  const depth = new Map();
  const visit = (id, path) => {
    if (depth.has(id)) return depth.get(id);
    if (path.has(id)) return 0; // a cycle: plans have none, but the page must not hang
    path.add(id);
    const deepest = Math.max(-1, ...before.get(id).map((one) => visit(one, path)));
    path.delete(id);
    depth.set(id, deepest + 1);
    return deepest + 1;
  };
  for (const { id } of operators) visit(id, new Set());
  const isQuery = new Set(operators.filter(({ kind }) => kind === "query").map(({ id }) => id));
  const last = Math.max(1, ...operators.filter(({ id }) => !isQuery.has(id)).map(({ id }) => depth.get(id) + 1));
  for (const id of isQuery) depth.set(id, last);
  return depth;
}

const mean = (numbers) => numbers.reduce((sum, one) => sum + one, 0) / numbers.length;

/** Stacks nodes vertically, each as near to its wanted position as the nodes above it allow. */
function stack(nodes, wanted) {
  const ordered = nodes.map((node, index) => [wanted(node) ?? index, node]).sort((a, b) => a[0] - b[0]);
  let free = TOP;
  for (const [y, node] of ordered) {
    node.y = Math.max(free, y - node.height / 2);
    free = node.y + node.height + GAP;
  }
}

/** Returns the number of queries in a row, since a single column of many queries would be too long. */
function abreast(count) {
  return Math.min(4, Math.max(1, Math.ceil(count / 24)));
}

/** Arranges ordered queries in rows, those with the same operators together. */
function gather(queries, x, before) {
  const columns = abreast(queries.length);
  const width = columns === 1 ? WIDE : NARROW;
  let [row, column, group] = [-1, columns, null];
  for (const query of queries) {
    const mine = before.get(query.id).join();
    if (column === columns || mine !== group) [row, column, group] = [row + 1, 0, mine];
    Object.assign(query, { x: x + column * (width + GAP), y: TOP + row * (query.height + GAP), width });
    column++;
  }
}

/** Returns nodes with x, y, width and height, the links between them, and the total size. */
export function layout(operators, edges) {
  const known = new Set(operators.map(({ id }) => id));
  const links = edges.filter(([from, to]) => known.has(from) && known.has(to));
  const before = neighbours(operators, links, true);
  const after = neighbours(operators, links, false);
  const depth = columnsOf(operators, before);
  const nodes = new Map(operators.map((one) => [one.id, { ...one, ...sizeOf(one.kind), x: 0, y: 0 }]));
  const columns = Array.from({ length: Math.max(0, ...depth.values()) + 1 }, () => []);
  for (const node of nodes.values()) columns[depth.get(node.id)].push(node);
  const middle = (node) => node.y + node.height / 2;
  const near = (map) => (node) => {
    const beside = map.get(node.id).map((id) => middle(nodes.get(id)));
    return beside.length ? mean(beside) : undefined;
  };
  let x = LEFT;
  for (const column of columns) {
    stack(column, near(before)); // left to right, for few crossings
    for (const node of column) node.x = x;
    x += Math.max(0, ...column.map((node) => node.width)) + COLUMN_GAP;
  }
  const last = columns.at(-1).sort((a, b) => a.y - b.y);
  if (last.length) gather(last, last[0].x, before);
  for (const column of columns.slice(0, -1).reverse()) stack(column, near(after)); // right to left, each beside its outputs
  const all = [...nodes.values()];
  return {
    nodes: all,
    links: links.map(([from, to]) => ({ from: nodes.get(from), to: nodes.get(to) })),
    width: Math.max(400, ...all.map((node) => node.x + node.width + LEFT)),
    height: Math.max(160, ...all.map((node) => node.y + node.height + LEFT)),
  };
}
