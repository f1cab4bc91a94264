package redact

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
)

// JSON removes the secrets from JSON, or lines of it; the result is still JSON.
func (r Redactor) JSON(data []byte) []byte { return InJSON(data, r.Text) }

// tokens matches the relevant parts of JSON: strings, with the colon after a name,
// numbers, and the beginnings and ends of objects and lists.
var tokens = regexp.MustCompile(`"(?:[^"\\]|\\.)*"(?:\s*:)?|-?[0-9][0-9.eE+-]*|[{}\]]`)

// secretField matches the names of fields with secret values.
var secretField = regexp.MustCompile(`(?i)(?:` + secretWords + `|` + headers + `)$`)

// InJSON calls hide with every string and number of the JSON, unescaped. It replaces the
// whole value of a field with a secret name. What a killed process left of a line becomes a string on a line of its own:
// where its own strings end can't be told.
func InJSON(data []byte, hide func(string) string) []byte {
	if json.Valid(data) {
		return inValid(data, hide)
	}
	var out []byte
	for line := range bytes.Lines(data) {
		text := bytes.TrimSpace(line)
		at := 0 // where what is valid begins: the next process may have written behind the unfinished part
		for at < len(text) && !json.Valid(text[at:]) {
			next := bytes.Index(text[at+1:], []byte(`{"`))
			if next < 0 {
				next = len(text) - at - 1
			}
			at += 1 + next
		}
		if at > 0 {
			quoted, _ := json.Marshal(hide(string(text[:at]))) // of a string it has no error
			out = append(out, quoted...)
			if at < len(text) {
				out = append(out, '\n')
			}
		}
		out = append(out, inValid(text[at:], hide)...)
		if bytes.HasSuffix(line, []byte("\n")) {
			out = append(out, '\n')
		}
	}
	return out
}

func inValid(data []byte, hide func(string) string) []byte {
	secret := false
	return tokens.ReplaceAllFunc(data, func(token []byte) []byte {
		switch token[0] {
		case '{', '}', ']':
			secret = false
			return token
		}
		literal, isName := bytes.CutSuffix(token, []byte(":"))
		text, ok := textOf(literal)
		hidden := hide(text)
		switch {
		case isName:
			secret = secretField.MatchString(text)
		case secret && text != "":
			hidden = Mark
		}
		if ok && hidden == text {
			return token
		}
		quoted, err := json.Marshal(hidden)
		if err != nil || !ok {
			quoted = []byte(`"` + Mark + `"`)
		}
		if isName {
			quoted = append(quoted, ':')
		}
		return quoted
	})
}

// textOf is the value of a string or number; false if it is not valid JSON.
func textOf(literal []byte) (text string, ok bool) {
	if literal[0] != '"' {
		return string(literal), true
	}
	err := json.Unmarshal(literal, &text)
	return text, err == nil
}

// Growing is hide for the logs of a run, which only grow and are renamed: it hides again only what has been written since.
func Growing(hide func([]byte) []byte) func([]byte) []byte {
	type part struct{ text, hidden []byte }
	var known []part // the log, the one before, and one that either replaces
	return func(data []byte) []byte {
		if json.Valid(data) { // no log
			return hide(data)
		}
		end := bytes.LastIndexByte(data, '\n') + 1
		var before part
		if at := slices.IndexFunc(known, func(p part) bool { return bytes.HasPrefix(data, p.text) }); at >= 0 {
			before = known[at]
			known = slices.Delete(known, at, at+1)
		}
		now := part{bytes.Clone(data[:end]), slices.Concat(before.hidden, hide(data[len(before.text):end]))}
		if end > 0 {
			known = append(known, now)
			known = known[max(0, len(known)-3):]
		}
		return slices.Concat(now.hidden, hide(data[end:]))
	}
}
