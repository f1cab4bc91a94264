package apidoc

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

var (
	integer = regexp.MustCompile(`^[+-]?\d+$`)
	number  = regexp.MustCompile(`^[+-]?(\d+\.\d+|\d+\.|\.\d+|\d+)([eE][+-]?\d+)?$`)
)

// value checks one value in the order of check_prop of PVE::JSONSchema, which stops at the
// first violation.
func (c *check) value(at string, p *property, value string) {
	for _, what := range p.unchecked {
		c.unchecked(at, what)
	}
	if !c.ofType(at, p.Type, value) {
		return
	}
	if p.Format != nil && !c.ofFormat(at, p.Format, value) {
		return
	}
	if p.pattern != nil && !p.pattern.MatchString(value) {
		c.wrong(at, "value does not match the regex pattern %s - got '%s'", p.Pattern, shown(value))
		return
	}
	length := bound(utf8.RuneCountInString(value))
	switch {
	case p.MaxLength != nil && length > *p.MaxLength:
		c.wrong(at, "value may only be %v characters long", *p.MaxLength)
		return
	case p.MinLength != nil && length < *p.MinLength:
		c.wrong(at, "value must be at least %v characters long", *p.MinLength)
		return
	}
	if !c.inBounds(at, p, value) {
		return
	}
	if len(p.Enum) > 0 && !slices.Contains(p.Enum, scalar(value)) {
		c.wrong(at, "value '%s' does not have a value in the enumeration", shown(value))
	}
}

// ofType is check_type. A boolean must be 1 or 0 here; on, yes and true are only valid in
// property strings.
func (c *check) ofType(at, kind, value string) bool {
	ok := true
	switch kind {
	case "boolean":
		ok = value == "1" || value == "0"
	case "integer":
		ok = integer.MatchString(value)
	case "number":
		ok = number.MatchString(value)
	case "", "string", "any":
	default:
		c.unchecked(at, "type "+kind)
	}
	if !ok {
		c.wrong(at, "type check ('%s') failed - got '%s'", kind, shown(value))
	}
	return ok
}

// inBounds checks everything that looks like a number, whatever its type.
func (c *check) inBounds(at string, p *property, value string) bool {
	if !number.MatchString(value) {
		return true
	}
	n, err := strconv.ParseFloat(value, 64)
	switch {
	case err != nil:
		c.wrong(at, "the number '%s' is too large", shown(value))
	case p.Maximum != nil && bound(n) > *p.Maximum:
		c.wrong(at, "value must have a maximum value of %v", *p.Maximum)
	case p.Minimum != nil && bound(n) < *p.Minimum:
		c.wrong(at, "value must have a minimum value of %v", *p.Minimum)
	default:
		return true
	}
	return false
}

func (c *check) unchecked(at, what string) {
	what = at + ": " + what
	if !slices.Contains(c.verdict.Unchecked, what) {
		c.verdict.Unchecked = append(c.verdict.Unchecked, what)
	}
}

// shown is a value, shortened for messages.
func shown(value string) string {
	value = strings.Join(strings.Fields(value), " ")
	if runes := []rune(value); len(runes) > 80 {
		return string(runes[:80]) + "…"
	}
	return value
}

// ofFormat checks a property string, or a value with a named format. A name may end in
// -list or -opt (check_format of PVE::JSONSchema).
func (c *check) ofFormat(at string, f *format, value string) bool {
	keys := f.keys
	if keys == nil {
		keys = c.schema.formats[f.name]
	}
	if keys != nil {
		return c.propertyString(at, keys, value)
	}
	name, kind := f.name, ""
	for _, suffix := range []string{"-list", "-opt"} {
		if base, ok := strings.CutSuffix(f.name, suffix); ok {
			name, kind = base, suffix
		}
	}
	is, known := named[name]
	if !known {
		c.unchecked(at, "format "+f.name)
		return true
	}
	parts := []string{value}
	switch {
	case kind == "-list":
		parts = splitList(value)
	case kind == "-opt" && (value == "" || value == "0"): // Perl's false
		parts = nil
	}
	for _, part := range parts {
		if !is(part) {
			c.wrong(at, "invalid format - '%s' is no %s", shown(part), name)
			return false
		}
	}
	return true
}

// splitList is split_list of PVE::Tools: a list that contains NULs is split at these, else
// at commas, semicolons and blanks.
func splitList(list string) []string {
	if strings.Contains(list, "\x00") {
		return strings.Split(list, "\x00")
	}
	return strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(",; \t\r\n\f\v", r) })
}
