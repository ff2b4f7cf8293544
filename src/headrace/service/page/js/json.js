// JSON as the service says it: integers beyond what a number holds exactly keep all their digits, as BigInt.

const MANY_DIGITS = /\d{16}/;
const INTEGER = /^-?\d+$/;

/** Returns what a text says; browsers that do not show the source of a number round it. */
export function parse(text) {
  if (!MANY_DIGITS.test(text)) return JSON.parse(text);
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" && !Number.isSafeInteger(value) && INTEGER.test(context?.source ?? "")
      ? BigInt(context.source)
      : value,
  );
}
