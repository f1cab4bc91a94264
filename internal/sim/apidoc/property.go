package apidoc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// properties are parameters, or the keys of a property string.
type properties map[string]*property

// property is one of them, with the keywords of PVE::JSONSchema.
type property struct {
	Type        string   `json:"type"`
	Description string   `json:"description"`
	Optional    flag     `json:"optional"`
	Enum        []scalar `json:"enum"`
	Pattern     string   `json:"pattern"`
	Minimum     *bound   `json:"minimum"`
	Maximum     *bound   `json:"maximum"`
	MinLength   *bound   `json:"minLength"`
	MaxLength   *bound   `json:"maxLength"`
	Format      *format  `json:"format"`
	Requires    string   `json:"requires"`
	DefaultKey  flag     `json:"default_key"`
	Alias       string   `json:"alias"`
	KeyAlias    string   `json:"keyAlias"`
	unchecked   []string // keywords that can't be checked
	pattern     *regexp.Regexp
	last        int // highest index, if indexed
}

// described are keywords without a check. min and max are among them, by mistake: Proxmox
// only checks minimum and maximum.
var described = []string{
	"default", "description", "format_description", "max", "min", "renderer", "title", "typetext", "verbose_description",
}

// UnmarshalJSON notes unknown keywords.
func (p *property) UnmarshalJSON(b []byte) error {
	type plain property
	if err := json.Unmarshal(b, (*plain)(p)); err != nil {
		return err
	}
	var keywords map[string]json.RawMessage
	if err := json.Unmarshal(b, &keywords); err != nil {
		return err
	}
	known := append([]string{
		"type", "optional", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "format", "requires",
		"default_key", "alias", "keyAlias",
	}, described...)
	for _, keyword := range slices.Sorted(maps.Keys(keywords)) {
		switch {
		case keyword == "enum" && bytes.Equal(keywords[keyword], []byte("null")):
			p.unchecked = append(p.unchecked, "its enumeration is not in the schema")
		case !slices.Contains(known, keyword):
			p.unchecked = append(p.unchecked, "keyword "+keyword)
		}
	}
	return nil
}

// prepare compiles the patterns and lists what can't be checked.
func (s *Schema) prepare(at string, all properties) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		p, at := all[name], at+" "+name
		if p.Pattern != "" {
			re, err := perl(p.Pattern)
			if err != nil {
				p.unchecked = append(p.unchecked, fmt.Sprintf("pattern %s: %v", p.Pattern, err))
			}
			p.pattern = re
		}
		for _, why := range p.unchecked {
			s.except("%s: %s", at, why)
		}
		if p.Format != nil {
			s.prepare(at, p.Format.keys)
		}
	}
}

var (
	perlGroup      = regexp.MustCompile(`\(\?\^([a-z]*):`)
	perlQuantifier = regexp.MustCompile(`\{,(\d+)\}`)
)

// perl translates a Perl pattern. It is not grouped, because check_prop of PVE::JSONSchema
// does not group it either: /^a|b$/. Go takes {,n} literally; since Perl 5.34 it means "up
// to n".
func perl(pattern string) (*regexp.Regexp, error) {
	pattern = perlGroup.ReplaceAllStringFunc(pattern, func(group string) string {
		return "(?" + strings.TrimPrefix(group, "(?^")
	})
	return regexp.Compile("^" + perlQuantifier.ReplaceAllString(pattern, "{0,$1}") + "$")
}

// unsaid are the highest indices of parameters whose schema has none (MAX_NETS and the
// like in qemu-server).
var unsaid = map[string]int{"hostpci": 15, "ipconfig": 31, "net": 31, "numa": 7, "unused": 255, "usb": 13, "virtiofs": 9}

var saidLast = regexp.MustCompile(`\(n is 0 to (\d+)\)`)

func lastIndex(base, description string) int {
	if m := saidLast.FindStringSubmatch(description); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			return n
		}
	}
	return unsaid[base]
}

// format is a named format, or the keys of a property string.
type format struct {
	name string
	keys properties
}

func (f *format) UnmarshalJSON(b []byte) error {
	if json.Unmarshal(b, &f.name) == nil {
		return nil
	}
	return json.Unmarshal(b, &f.keys)
}

// flag is a boolean as Perl writes it: 1, "1", true.
type flag bool

func (f *flag) UnmarshalJSON(b []byte) error {
	switch strings.Trim(string(b), `"`) {
	case "1", "true":
		*f = true
	case "0", "false", "null", "":
		*f = false
	default:
		return fmt.Errorf("%s is neither true nor false", b)
	}
	return nil
}

// bound is a number, which Perl may write as a string.
type bound float64

func (n *bound) UnmarshalJSON(b []byte) error {
	v, err := strconv.ParseFloat(strings.Trim(string(b), `"`), 64)
	*n = bound(v)
	return err
}

// scalar is a string or a number, as text.
type scalar string

func (s *scalar) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) != nil {
		text = string(b)
	}
	*s = scalar(text)
	return nil
}
