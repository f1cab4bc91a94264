package ui

import "strings"

// widest is how far a column of a table goes at most: one long name must not
// push everything else off the screen.
const widest = 32

// table is the widths of the columns of rows that stand under each other.
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

// tableOf is that of a single row.
func tableOf(cells []string) (t table) {
	t.fit(cells...)
	return t
}

// row prints cells under those of the other rows. Where that is too wide for the
// terminal they follow each other, as words do.
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
