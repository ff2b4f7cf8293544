// The newest rows of a query; older rows are evicted.

/** A ring buffer of rows; `added` counts all rows ever pushed. */
export class Rows {
  constructor(most) {
    this.most = most;
    this.clear();
  }

  clear() {
    this.kept = [];
    this.next = 0;
    this.added = 0;
  }

  get length() {
    return this.kept.length;
  }

  push(rows) {
    for (const row of rows.length > this.most ? rows.slice(-this.most) : rows) {
      if (this.kept.length < this.most) this.kept.push(row);
      else this.kept[this.next] = row;
      this.next = (this.next + 1) % this.most;
    }
    this.added += rows.length;
  }

  /** Yields the rows, oldest first. */
  *[Symbol.iterator]() {
    const begin = this.kept.length < this.most ? 0 : this.next;
    for (let i = 0; i < this.kept.length; i++) yield this.kept[(begin + i) % this.kept.length];
  }

  /** Returns the newest rows, newest first. */
  newest(count) {
    const found = [];
    const size = this.kept.length;
    const end = size < this.most ? size : this.next;
    for (let i = 1; i <= Math.min(count, size); i++) found.push(this.kept[(end - i + size) % size]);
    return found;
  }
}

/** A rate per second over the last few seconds. */
export class Pace {
  constructor(seconds = 5) {
    this.span = seconds * 1000;
    this.seen = [];
  }

  add(number, now) {
    this.seen.push([now, number]);
    while (this.seen[0][0] < now - this.span) this.seen.shift();
  }

  perSecond(now) {
    const recent = this.seen.filter(([at]) => at >= now - this.span);
    return recent.reduce((sum, [, number]) => sum + number, 0) / (this.span / 1000);
  }
}
