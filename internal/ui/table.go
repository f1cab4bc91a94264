package ui

import "strings"

// widest is the maximum width of a column: one long name must not push everything else
// off the screen.
const widest = 32

// table holds the column widths of aligned rows.
type table []int

// fit widens the columns for a row.
func (t *table) fit(cells ...string) {
	for i, cell := range cells {
		if i == len(*t) {
			*t = append(*t, 0)
		}
		(*t)[i] = max((*t)[i], min(columns(cell), widest))
	}
}

// tableOf is the table of a single row.
func tableOf(cells []string) (t table) {
	t.fit(cells...)
	return t
}

// row prints cells aligned with those of other rows. If that is too wide for the terminal,
// it prints them like words.
func (p *page) row(t table, indent string, cells ...string) {
	line := indent
	for i, cell := range cells {
		line += cell
		if i < len(cells)-1 && i < len(t) {
			line += strings.Repeat(" ", max(0, t[i]-columns(cell))+2)
		}
	}
	line = strings.TrimRight(line, " ")
	if p.columns == 0 || columns(line) <= p.columns {
		p.line("%s", line)
		return
	}
	var rest []string
	for _, cell := range cells[1:] {
		if cell != "" {
			rest = append(rest, cell)
		}
	}
	p.wrapped(indent+cells[0]+"  ", indent+"    ", strings.Join(rest, ", "))
}
