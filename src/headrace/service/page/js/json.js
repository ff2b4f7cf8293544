// JSON of the service: integers beyond the exact range of a number become BigInt.

const MANY_DIGITS = /\d{16}/;
const INTEGER = /^-?\d+$/;

/** Parses JSON; browsers without access to the source text of numbers round large ones. */
export function parse(text) {
  if (!MANY_DIGITS.test(text)) return JSON.parse(text);
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" && !Number.isSafeInteger(value) && INTEGER.test(context?.source ?? "")
      ? BigInt(context.source)
      : value,
  );
}
