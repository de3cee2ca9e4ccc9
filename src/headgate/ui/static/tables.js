// Tables with sorting, pages and a filter; an update writes only into the cells that have changed.

import { h, setAttribute, setText } from "./format.js";

let tables = 0;

/** A column: {label, hint, value(row), text(row), numeric, make(), paint(made, row)}; `make` is for cells with more than text. */
export class Table {
    #columns;
    #key;
    #rows = [];
    #sort;
    #size;
    #page = 0;
    #words = "";
    #empty;
    #heads = [];
    #body = h("tbody");
    #pages;
    #showing;
    #buttons;
    #none;
    #scroll;

    constructor(
        parent,
        {
            caption,
            columns,
            key = null,
            sort = null,
            descending = false,
            pageSize = 25,
            filter = null,
            empty = "Nothing yet.",
        },
    ) {
        tables += 1;
        const id = `table-${tables}`;
        this.#columns = columns;
        this.#key = key;
        this.#sort = { column: sort, descending };
        this.#size = pageSize;
        this.#empty = empty;
        const heads = columns.map((column, index) => this.#head(column, index));
        const table = h(
            "table",
            {},
            h("caption", { id, class: "unseen" }, caption),
            h("thead", {}, h("tr", {}, ...heads)),
            this.#body,
        );
        this.#none = h("p", { class: "none", hidden: true }, empty);
        if (filter) (parent.querySelector(":scope > .section-head") ?? parent).append(this.#filter(filter, id));
        this.#scroll = h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-labelledby": id }, table);
        parent.append(this.#scroll, this.#none, this.#pager(caption));
        this.#showSort();
    }

    update(rows) {
        this.#rows = rows;
        this.#show();
    }

    /** The text of a row for the filter. */
    #textOf(row) {
        return this.#columns
            .map((column) => cellText(column, row))
            .join(" ")
            .toLowerCase();
    }

    #head(column, index) {
        const button = h(
            "button",
            { type: "button", title: column.hint ?? null, onclick: () => this.#sortBy(index) },
            column.label,
        );
        const head = h("th", { scope: "col", class: column.numeric ? "num" : null }, button);
        this.#heads.push(head);
        return head;
    }

    #sortBy(index) {
        const again = this.#sort.column === index;
        // The first click sorts figures in descending order, names in ascending order.
        this.#sort = {
            column: index,
            descending: again ? !this.#sort.descending : Boolean(this.#columns[index].numeric),
        };
        this.#page = 0;
        this.#showSort();
        this.#show();
    }

    #showSort() {
        this.#heads.forEach((head, index) => {
            const way = this.#sort.descending ? "descending" : "ascending";
            setAttribute(head, "aria-sort", index === this.#sort.column ? way : "none");
        });
    }

    #filter(label, id) {
        const input = h("input", { type: "search", id: `${id}-filter`, autocomplete: "off", spellcheck: "false" });
        input.addEventListener("input", () => {
            this.#words = input.value.trim().toLowerCase();
            this.#page = 0;
            this.#show();
        });
        return h(
            "p",
            { class: "filter" },
            h("label", { for: `${id}-filter` }, "Filter", h("span", { class: "unseen" }, ` ${label}`)),
            input,
        );
    }

    #pager(caption) {
        const turnPage = (by) => () => {
            this.#page += by;
            this.#show();
        };
        this.#buttons = [
            h("button", { type: "button", onclick: turnPage(-1), "aria-label": `Previous page of ${caption}` }, "Previous"),
            h("button", { type: "button", onclick: turnPage(1), "aria-label": `Next page of ${caption}` }, "Next"),
        ];
        this.#showing = h("span", {});
        this.#pages = h("p", { class: "pager", hidden: true }, this.#buttons[0], this.#showing, this.#buttons[1]);
        return this.#pages;
    }

    #sorted() {
        const words = this.#words;
        const rows = words ? this.#rows.filter((row) => this.#textOf(row).includes(words)) : this.#rows;
        const { column, descending } = this.#sort;
        if (column === null) return rows;
        const value = this.#columns[column].value;
        const sign = descending ? -1 : 1;
        return rows.toSorted((a, b) => sign * compare(value(a), value(b)));
    }

    #show() {
        const rows = this.#sorted();
        const last = Math.max(0, Math.ceil(rows.length / this.#size) - 1);
        this.#page = Math.min(Math.max(0, this.#page), last);
        const from = this.#page * this.#size;
        const shown = rows.slice(from, from + this.#size);
        while (this.#body.rows.length > shown.length) this.#body.deleteRow(-1);
        while (this.#body.rows.length < shown.length) this.#body.append(this.#newRow());
        shown.forEach((row, index) => this.#write(this.#body.rows[index], row));
        this.#none.hidden = shown.length > 0;
        this.#scroll.hidden = this.#rows.length === 0;
        if (shown.length === 0) setText(this.#none, this.#rows.length > 0 ? "Nothing has these words." : this.#empty);
        else setText(this.#none, "");
        this.#pages.hidden = last === 0;
        setText(this.#showing, `${from + 1} to ${from + shown.length} of ${rows.length}`);
        this.#buttons[0].disabled = this.#page === 0;
        this.#buttons[1].disabled = this.#page === last;
    }

    #newRow() {
        const cells = this.#columns.map((column, index) => {
            const attributes = { class: column.numeric ? "num" : null, scope: index === 0 ? "row" : null };
            return h(index === 0 ? "th" : "td", attributes, ...(column.make ? [column.make()] : []));
        });
        return h("tr", {}, ...cells);
    }

    #write(tr, row) {
        if (this.#key) setAttribute(tr, "data-key", this.#key(row));
        this.#columns.forEach((column, index) => {
            const cell = tr.cells[index];
            if (column.paint) column.paint(column.make ? cell.firstChild : cell, row);
            else setText(cell, cellText(column, row));
        });
    }
}

function cellText(column, row) {
    return column.text ? column.text(row) : String(column.value(row) ?? "–");
}

/** Unknown values are last in ascending order. */
function compare(a, b) {
    const [noA, noB] = [a === null || a === undefined, b === null || b === undefined];
    if (noA || noB) return noA - noB;
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), undefined, { numeric: true });
}

let groups = 0;

/** Radio buttons that look like one control. */
export function choice(legend, options, chosen, change) {
    groups += 1;
    const name = `choice-${groups}`;
    const parts = options.map(([value, label]) => {
        const input = h("input", { type: "radio", name, value, id: `${name}-${value}`, checked: value === chosen });
        input.addEventListener("change", () => change(value));
        return [input, h("label", { for: `${name}-${value}` }, label)];
    });
    return h(
        "fieldset",
        { class: "choice" },
        h("legend", {}, legend),
        h("span", { class: "options" }, ...parts.flat()),
    );
}

/** Terms and figures: [[term, key]...] -> an element and a function that writes {key: text}. */
export function figures(terms) {
    const values = new Map();
    const pairs = terms.map(([term, key, hint]) => {
        const value = h("dd", { "data-figure": key });
        values.set(key, value);
        return h("div", { title: hint ?? null }, h("dt", {}, term), value);
    });
    const write = (texts) => {
        for (const [key, text] of Object.entries(texts)) setText(values.get(key), text);
    };
    return [h("dl", { class: "figures" }, ...pairs), write];
}
