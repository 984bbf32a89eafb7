// Tables whose heads are buttons that sort, and long ones with a field that filters. Without this
// script the page shows the same, in the order in which it was made.
const UNITS = { ns: 1e-3, "µs": 1, us: 1, ms: 1e3, s: 1e6, k: 1e3, M: 1e6, G: 1e9, T: 1e12 };

function value(cell) {
  const text = cell ? cell.textContent.trim() : "";
  const found = text.replace(/,/g, "").match(/^(-?[\d.]+(?:e[-+]?\d+)?)\s*([a-zµ]+)?/i);
  if (!found) return text === "–" ? null : text.toLowerCase();
  const unit = found[2] || "";
  return parseFloat(found[1]) * (UNITS[unit] || UNITS[unit[0]] || 1);
}

function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return typeof a === "number" ? a - b : a.localeCompare(b);
}

function sort(table, head, column) {
  const down = head.getAttribute("aria-sort") !== "descending" && head.classList.contains("n");
  const next = down || head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  table.querySelectorAll("th").forEach((each) => each.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", next);
  const sign = next === "ascending" ? 1 : -1;
  const rows = [...table.tBodies[0].rows].map((row) => [value(row.cells[column]), row]);
  rows.sort(([a], [b]) => (a === null || b === null ? compare(a, b) : sign * compare(a, b)));
  rows.forEach(([, row]) => table.tBodies[0].append(row));
}

function filtered(table) {
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = "filter rows";
  field.setAttribute("aria-label", "filter rows");
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
  table.closest(".scroll").before(field);
}

document.querySelectorAll(".scroll > table").forEach((table) => {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    head.tabIndex = 0;
    head.title = "sort";
    head.addEventListener("click", () => sort(table, head, column));
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        sort(table, head, column);
      }
    });
  });
  if (table.tBodies[0].rows.length > 8) filtered(table);
});
