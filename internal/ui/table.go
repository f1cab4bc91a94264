package ui

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// widest is the maximum width of a column: one long name must not push everything else
// off the screen.
const widest = 32

// table holds the column widths of aligned rows.
type table []int

// fit widens the columns for a row, up to a limit.
func (t *table) fit(limit int, row []string) {
	for i, cell := range row {
		if i == len(*t) {
			*t = append(*t, 0)
		}
		(*t)[i] = max((*t)[i], min(columns(cell), limit))
	}
}

// tableOf is the table of rows, whose columns are at most limit wide.
func tableOf(limit int, rows ...[]string) (t table) {
	for _, row := range rows {
		t.fit(limit, row)
	}
	return t
}

// joined is a line with the cells, each but the last as wide as its column.
func (t table) joined(indent string, cells []string) string {
	var line strings.Builder
	line.WriteString(indent)
	for i, cell := range cells {
		line.WriteString(cell)
		if i < len(cells)-1 {
			line.WriteString(strings.Repeat(" ", max(0, t[i]-columns(cell))+2))
		}
	}
	return line.String()
}

// row prints cells aligned with those of other rows. If that is too wide for the terminal,
// it prints them like words.
func (p *page) row(t table, indent string, cells ...string) {
	line := strings.TrimRight(t.joined(indent, cells), " ")
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

// rows prints aligned rows; below, if there is one, prints what is below a row.
func (p *page) rows(indent string, rows [][]string, below func(row int)) {
	t := tableOf(widest, rows...)
	for i, row := range rows {
		p.row(t, indent, row...)
		if below != nil {
			below(i)
		}
	}
}

// pasted prints aligned rows whose cells are never wrapped, however wide they are: for pasting.
func (p *page) pasted(indent string, rows [][]string) {
	t := tableOf(math.MaxInt, rows...)
	for _, row := range rows {
		p.line("%s", t.joined(indent, row))
	}
}

// group is texts, each once and in order, with the names of what has them.
type group struct {
	texts []string
	names map[string][]string
}

func (g *group) add(text, name string) {
	if g.names == nil {
		g.names = map[string][]string{}
	}
	if g.names[text] == nil {
		g.texts = append(g.texts, text)
	}
	g.names[text] = append(g.names[text], name)
}

// lines are the texts, each after the names.
func (g *group) lines() (out []string) {
	for _, text := range g.texts {
		out = append(out, together(g.names[text])+": "+text)
	}
	return out
}

// together joins names; consecutive ones become a range: "cp1, wk003…wk499".
func together(names []string) string {
	var out []string
	for i := 0; i < len(names); {
		end := i
		for end+1 < len(names) && names[end+1] == successor(names[end]) {
			end++
		}
		if end-i < 3 { // a range would not be shorter
			out = append(out, names[i])
			i++
			continue
		}
		out = append(out, names[i]+"…"+names[end])
		i = end + 1
	}
	return strings.Join(out, ", ")
}

// successor is the name with the next number: "wk010" after "wk009", "wk10" after "wk9"; ""
// if the name does not end with a number.
func successor(name string) string {
	prefix := strings.TrimRight(name, "0123456789")
	digits := name[len(prefix):]
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s%0*d", prefix, len(digits), n+1)
}
