// Package emulator is a terminal's screen for tests: what a person sees after a program has
// written to it. It knows the sequences that the live view uses, and reports all others.
package emulator

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Screen is the content of a terminal with its scrollback. A line that is longer than the
// screen is wide stays one line, as it is when a person copies it.
type Screen struct {
	// Problems are what a real terminal may show differently.
	Problems []string
	// Widest is the length of the longest line so far.
	Widest int

	width, height int
	rows          [][]rune // including those that have scrolled away
	x, y          int      // y counts from the first visible row
	rest          []byte   // an incomplete sequence
}

func New(columns, rows int) *Screen {
	return &Screen{width: columns, height: rows, rows: make([][]rune, rows)}
}

// Text is the content and the scrollback, without empty lines around them.
func (s *Screen) Text() string {
	var out strings.Builder
	for _, row := range s.rows {
		out.WriteString(strings.TrimRight(string(row), " ") + "\n")
	}
	return strings.Trim(out.String(), "\n") + "\n"
}

var sequence = regexp.MustCompile(`^\x1b\[([?>=<]?)([0-9;]*)( ?[@-~])`)

func (s *Screen) Write(b []byte) (int, error) {
	written := len(b)
	b = append(s.rest, b...)
	for len(b) > 0 {
		if len(b) > 1 && b[0] == 0x1b && b[1] != '[' {
			s.escape(b[1])
			b = b[2:]
			continue
		}
		if b[0] == 0x1b {
			m := sequence.FindSubmatch(b)
			if m == nil {
				break // the rest will come
			}
			n, _ := strconv.Atoi(string(m[2]))
			if len(m[1]) == 0 {
				s.control(string(m[3]), n)
			}
			b = b[len(m[0]):]
			continue
		}
		r := []rune(string(b))[0]
		if r == '\ufffd' && len(b) < 4 {
			break
		}
		s.put(r)
		b = b[len(string(r)):]
	}
	s.rest = bytes.Clone(b)
	return written, nil
}

func (s *Screen) problem(format string, args ...any) {
	s.Problems = append(s.Problems, fmt.Sprintf(format, args...))
}

func (s *Screen) row(y int) *[]rune { return &s.rows[len(s.rows)-s.height+y] }

func (s *Screen) put(r rune) {
	switch r {
	case '\r':
		s.x = 0
	case '\n':
		if s.y++; s.y == s.height {
			s.y--
			s.rows = append(s.rows, nil)
		}
	case '\b':
		s.x = max(0, s.x-1)
	default:
		row := s.row(s.y)
		for len(*row) <= s.x {
			*row = append(*row, ' ')
		}
		(*row)[s.x] = r
		s.x++
		s.Widest = max(s.Widest, s.x)
	}
}

func (s *Screen) escape(what byte) {
	if what != 'M' || s.y == 0 {
		s.problem("unknown sequence %q in line %d", what, s.y)
		return
	}
	s.y-- // reverse index
}

func (s *Screen) control(what string, n int) {
	one := max(1, n)
	switch what {
	case "A":
		s.y = max(0, s.y-one)
	case "B":
		s.y = min(s.height-1, s.y+one)
	case "C":
		s.x = min(s.width-1, s.x+one)
	case "D":
		s.x = max(0, s.x-one)
	case "G":
		s.x = one - 1
	case "J":
		if n != 0 {
			s.problem("erases %d of the screen", n)
		}
		s.erase(0)
		for y := s.y + 1; y < s.height; y++ {
			*s.row(y) = nil
		}
	case "K":
		s.erase(n)
	case "X":
		row := s.row(s.y)
		for i := s.x; i < min(s.x+one, len(*row)); i++ {
			(*row)[i] = ' '
		}
	case "L":
		for range one {
			for y := s.height - 1; y > s.y; y-- {
				*s.row(y) = *s.row(y - 1)
			}
			*s.row(s.y) = nil
		}
	case "M":
		for range one {
			for y := s.y; y < s.height-1; y++ {
				*s.row(y) = *s.row(y + 1)
			}
			*s.row(s.height - 1) = nil
		}
	case "P":
		row := s.row(s.y)
		if s.x < len(*row) {
			*row = append((*row)[:s.x:s.x], (*row)[min(len(*row), s.x+one):]...)
		}
	case "m", " q":
	default:
		s.problem("unknown sequence %q %d", what, n)
	}
}

// erase erases the line from the cursor on, up to it (1), or all of it (2).
func (s *Screen) erase(n int) {
	row := s.row(s.y)
	if n > 0 {
		for i := range min(s.x+1, len(*row)) {
			(*row)[i] = ' '
		}
	}
	if n != 1 {
		*row = (*row)[:min(s.x, len(*row))]
	}
}
