// The newest rows as a table: cells are created once and only their texts change, so that frequent updates are cheap.

import { h, mark, say } from "/page/js/dom.js";
import * as format from "/page/js/format.js";

const NUMERIC = /^(TINYINT|SMALLINT|INT|BIGINT|FLOAT|DOUBLE|DECIMAL)/;

/** Returns the text of a value and its tooltip. */
export function cell(value, type) {
  if (value === null || value === undefined) return ["NULL", ""];
  if (type === "TIMESTAMP") return [format.time(value), format.iso(value)];
  if (typeof value === "number")
    return [/^(FLOAT|DOUBLE)/.test(type) ? format.number(value) : format.count(value), String(value)];
  if (typeof value === "bigint") return [format.count(value), String(value)];
  const text = String(value);
  return [text.length > 200 ? `${text.slice(0, 200)}…` : text, text.length > 30 ? text : ""];
}

/** A table in an element. */
export class Table {
  constructor(element) {
    this.head = h("tr");
    this.body = h("tbody");
    this.columns = [];
    element.replaceChildren(h("table", { class: "rows" }, h("thead", null, this.head), this.body));
  }

  /** Sets the columns and removes all rows. */
  begin(columns) {
    this.columns = columns;
    this.head.replaceChildren(
      ...columns.map(({ name, type }) =>
        h(
          "th",
          { scope: "col", class: NUMERIC.test(type) ? "numeric" : null, title: type },
          name,
          h("span", { class: "type" }, type.toLowerCase()),
        ),
      ),
    );
    this.body.replaceChildren();
  }

  show(rows) {
    while (this.body.rows.length > rows.length) this.body.lastElementChild.remove();
    while (this.body.rows.length < rows.length) this.body.append(this.row());
    rows.forEach((row, index) => {
      const cells = this.body.rows[index].cells;
      for (let i = 0; i < this.columns.length; i++) {
        const [text, title] = cell(row[i], this.columns[i].type);
        say(cells[i], text);
        mark(cells[i], "title", title || null);
        cells[i].classList.toggle("null", row[i] === null);
      }
    });
  }

  row() {
    return h(
      "tr",
      null,
      this.columns.map(({ type }) => h("td", { class: NUMERIC.test(type) ? "numeric" : null })),
    );
  }
}
