package talos

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/redact"
)

const (
	redacted = "[redacted]"
	// minRedacted is the length below which a value reveals nothing and would match everywhere.
	minRedacted = 4
	unknownKeys = "unknown keys found during decoding:\n"
)

var (
	// documentID matches what identifies a document's kind, which is not secret.
	documentID = map[string]*regexp.Regexp{
		"apiVersion": regexp.MustCompile(`^v\d+([a-z]+\d+)?$`), "version": regexp.MustCompile(`^v\d+([a-z]+\d+)?$`),
		"kind": regexp.MustCompile(`^[A-Z][A-Za-z]+Config$`),
	}
	errorCount = regexp.MustCompile(`\d+ errors? occurred:`)
	quoted     = regexp.MustCompile("`[^`]*`|\"[^\"]*\"|'[^']*'")
	lineNo     = regexp.MustCompile(`line \d+`)
)

// withoutValues removes from a message about a configuration whatever may be one of its
// values: parsers and validators quote what they reject.
func withoutValues(text string, config []byte) string {
	values, ok := scalars(config)
	if !ok {
		return "not valid YAML" + linesOf(text)
	}
	if head, listing, found := strings.Cut(text, unknownKeys); found {
		text = head + "unknown keys: " + keyPaths(listing)
	}
	text = quoted.ReplaceAllStringFunc(text, func(q string) string {
		inner := strings.TrimSuffix(strings.TrimSpace(q[1:len(q)-1]), "...")
		if len(inner) >= minRedacted && slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, inner) }) {
			return redacted
		}
		return q
	})
	for _, v := range values {
		text = replaceWord(text, v, redacted)
	}
	return foreign.Line(oneLine(text))
}

// oneLine joins a list of errors, as Talos' validators format it, into one line.
func oneLine(text string) string {
	var parts []string
	for line := range strings.Lines(errorCount.ReplaceAllString(text, "")) {
		if line = strings.TrimSpace(strings.TrimLeft(line, "\t* ")); line != "" {
			parts = append(parts, line)
		}
	}
	return strings.NewReplacer(":; ", ": ", "&&; ", "&& ").Replace(strings.Join(parts, "; ")) // of a long CEL expression, too
}

// linesOf keeps only the position of a parser's message: ", line 3".
func linesOf(text string) string {
	if l := lineNo.FindString(text); l != "" {
		return ", " + l
	}
	return ""
}

// scalars returns a configuration's values, multi-line ones line by line, longest first.
func scalars(config []byte) (values []string, ok bool) {
	docs, err := parseDocuments(config)
	if err != nil {
		return nil, false
	}
	var walk func(n *yaml.Node, path []string)
	walk = func(n *yaml.Node, path []string) {
		switch n.Kind {
		case yaml.ScalarNode:
			secret := redact.Named(path, n.Value) || redact.Foreign(path)
			if tag := n.ShortTag(); tag == "!!bool" || tag == "!!null" || tag == "!!int" && !secret {
				return
			}
			for line := range strings.Lines(n.Value) {
				// A plain word may be one of the message's: "disk", "worker".
				if line = strings.TrimSpace(line); len(line) >= minRedacted && (secret || !redact.Word(line)) {
					values = append(values, line)
				}
			}
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				key, value := n.Content[i], n.Content[i+1]
				if id := documentID[key.Value]; id == nil || !id.MatchString(value.Value) {
					walk(value, append(slices.Clip(path), key.Value))
				}
			}
		case yaml.SequenceNode:
			for _, c := range n.Content {
				walk(c, path)
			}
		}
	}
	for _, d := range docs {
		if d.node != nil {
			walk(d.root.node, nil)
		}
	}
	slices.SortFunc(values, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	return slices.Compact(values), true
}

// keyPaths names the keys of a YAML text without their values.
func keyPaths(text string) string {
	var node yaml.Node
	if yaml.Unmarshal([]byte(text), &node) != nil || len(node.Content) == 0 {
		return redacted
	}
	var paths []string
	var walk func(n *yaml.Node, path string)
	walk = func(n *yaml.Node, path string) {
		switch {
		case n.Kind == yaml.MappingNode && len(n.Content) > 0:
			for i := 0; i+1 < len(n.Content); i += 2 {
				walk(n.Content[i+1], strings.TrimPrefix(path+"."+n.Content[i].Value, "."))
			}
		case n.Kind == yaml.SequenceNode && len(n.Content) > 0:
			for _, c := range n.Content {
				walk(c, path)
			}
		case !slices.Contains(paths, path):
			paths = append(paths, path)
		}
	}
	walk(node.Content[0], "")
	return strings.Join(paths, ", ")
}

// replaceWord replaces old wherever no letter or digit adjoins it.
func replaceWord(text, old, with string) string {
	var b strings.Builder
	for rest := text; ; {
		i := strings.Index(rest, old)
		if i < 0 {
			b.WriteString(rest)
			return b.String()
		}
		before, _ := utf8.DecodeLastRuneInString(rest[:i])
		if i == 0 {
			before, _ = utf8.DecodeLastRuneInString(b.String())
		}
		after, _ := utf8.DecodeRuneInString(rest[i+len(old):])
		b.WriteString(rest[:i])
		if partOfWord(before, old) || partOfWord(after, old) {
			b.WriteString(old)
		} else {
			b.WriteString(with)
		}
		rest = rest[i+len(old):]
	}
}

// partOfWord reports whether r next to old makes old a part of a longer word. Only
// short values can be part of an ordinary word.
func partOfWord(r rune, old string) bool {
	return len(old) < 12 && r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r))
}
