package redact

import (
	"bytes"
	"encoding/json"
	"regexp"
)

// JSON is JSON, or lines of it, without secrets, and still JSON.
func (r Redactor) JSON(data []byte) []byte { return InJSON(data, r.Text) }

// tokens are what of JSON matters here: texts, with the colon behind a name,
// numbers, and where objects and lists begin and end.
var tokens = regexp.MustCompile(`"(?:[^"\\]|\\.)*"(?:\s*:)?|-?[0-9][0-9.eE+-]*|[{}\]]`)

// secretField is how a field is called whose value is secret.
var secretField = regexp.MustCompile(`(?i)(?:` + secretWords + `|` + headers + `)$`)

// InJSON shows hide every text in JSON as it reads, not as it is escaped. What
// stands under the name of a secret goes as a whole.
func InJSON(data []byte, hide func(string) string) []byte {
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

// textOf is what a text or a number reads; false of what is no JSON.
func textOf(literal []byte) (text string, ok bool) {
	if literal[0] != '"' {
		return string(literal), true
	}
	err := json.Unmarshal(literal, &text)
	return text, err == nil
}
