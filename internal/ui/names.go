package ui

import (
	"fmt"
	"strconv"
	"strings"
)

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
