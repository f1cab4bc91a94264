package redact

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
)

var (
	word = regexp.MustCompile(`^[A-Za-z]+$`)
	// firstWord matches a word that is followed by another word, or that ends a link of a chain of errors. Longer
	// words, and words with capitals inside, are more likely secrets.
	firstWord = regexp.MustCompile(`^(?:x509:|[1-5][0-9]{2}[ \t]+[A-Z][a-z]|(?:[A-Za-z][a-z]{0,14}|[A-Z]{2,12})(?:['’][a-z]+)?(?::|[.,;]?[ \t]+(?:[A-Za-z]+(?:[^\w=+/@!-]|$)|[0-9]{1,4}(?:[^\w]|$)|["'(]|\.{0,2}/)))`)
	path      = regexp.MustCompile(`^\.{0,2}/[\w./-]+:`)
)

// verdicts are words that may stand alone after the name of a field and describe the field.
var verdicts = []string{
	"absent", "denied", "disabled", "empty", "enabled", "expired", "false", "forbidden", "given", "hidden", "invalid", "missing", "none", "null",
	"optional", "rejected", "required", "revoked", "set", "true", "unauthorized", "unknown", "unset", "wrong",
}

// Word says whether a text is one plain word, as in messages.
func Word(text string) bool { return word.MatchString(text) }

// prose says whether rest continues a sentence in a place where a secret could be: "read the token: permission
// denied".
func prose(rest string) bool {
	end := strings.IndexAny(rest, "\r\n")
	if end < 0 {
		end = len(rest)
	}
	line := rest[:end]
	return firstWord.MatchString(line) || path.MatchString(line) || verdict(line)
}

// verdict says whether a line is one word that describes a field.
func verdict(line string) bool {
	return slices.Contains(verdicts, strings.ToLower(strings.TrimRight(line, ".,;:!)]}")))
}

// unless returns a function that finds nothing secret in a match if is holds, and otherwise the whole match.
func unless(is func(match, rest string) bool) func(before, kept, match, rest string) int {
	return func(_, _, match, rest string) int {
		if is(match, rest) {
			return 0
		}
		return len(match)
	}
}

// afterColon matches the unquoted name of a field with a secret value, with its colon, as in YAML and in a chain of
// errors. afterSign matches the name with its sign in a file like KEY = VALUE.
var (
	afterColon = regexp.MustCompile(`(?i)(?:` + secretWords + `|` + headers + `)[ \t]*:\s*$`)
	afterSign  = regexp.MustCompile(`(?i)(?:` + secretWords + `)[ \t]+=[ \t]+$`)
	// lineStart matches what may precede the name of a field in a file, a diff of a file, or a list.
	lineStart = regexp.MustCompile(`(?:^|[\r\n"'` + "`" + `]|\\[nrt])(?:[ \t]|[-+>|*#]|\d+[:|])*$`)
	words     = regexp.MustCompile(`^[A-Za-z]+(?:['’][a-z]+)?$`)
)

// ofMessages are words of messages. A passphrase of several words does not consist of these alone. The text after a
// name in one of our sentences begins with such a word, or with more than words.
var ofMessages = strings.Fields(`
	a about access accepted after again all already an and another any are as ask at authentication authorization bad be been before but by can can't
	cannot certificate changed check client closed command config configuration connection contains context corrupt could couldn't credentials
	deadline denied did differs different directory disabled do does doesn't done don't empty enabled ended error exceeded exceeds exec exist exists exited
	expected expired expires failed false field file fit fits for forbidden format found from get given has have hidden holds host if in
	incomplete incorrect input integer internal invalid is isn't it its key kubeconfig language lacks line list local lock log login longer long lookup looks
	make malformed many may message missing more must name names need needed needs never nil no nobody none nor not nothing null number of off on one only open operation optional
	or other out parse path permission permitted please plugin post present privileges process read reads refused rejected remove removed
	request requests required reset response revoked role root run see server set should short shown signed signing since small so status stdin still
	string such system talosconfig text that the their then there these they this those timed timeout to token too try twice two unable unauthorized unavailable
	unexpected unknown unmarshal unreachable unset unsupported until unused up upgrade use used user uses valid value values variable version wait wants was wasn't were
	what when where whether which who with without write written wrong yaml you your`)

func ofMessage(text string) bool {
	return slices.Contains(ofMessages, strings.ToLower(text))
}

// passphrase says whether a clause is several plain words, none of them a word of messages.
func passphrase(clause string) bool {
	list := strings.Fields(clause)
	return len(list) > 1 && !slices.ContainsFunc(list, func(w string) bool { return !words.MatchString(w) || ofMessage(w) })
}

// lineOf returns text up to the end of its line, of its quotes, or of the string in which it is escaped.
func lineOf(text string) string {
	if end := strings.IndexAny(text, "\r\n\"\\"); end >= 0 {
		return text[:end]
	}
	return text
}

// secretIn returns how many bytes after the name of a field are secret. before is everything before the name, kept
// the name with its sign, match the first word after the name, rest everything from that word on. In a file, the name
// begins the line: then the whole line is secret, unless it consists of words of messages, or can't be a value: a
// plain value in YAML has no ": " (YAML 1.2.2, 7.3.3). In a sentence only a text that can't be part of the sentence
// is secret.
func secretIn(before, kept, match, rest string) int {
	line := lineOf(rest)
	colon, sign := afterColon.MatchString(kept), afterSign.MatchString(kept)
	if !colon && !sign {
		return len(match)
	}
	inFile := beginsLine(before)
	sentence := strings.Contains(line, ": ") || verdict(line)
	switch {
	case inFile && blockScalar.MatchString(line):
		return lenOfBlock(before, rest)
	case inFile && !sentence && !allOfMessages(line):
		if allOfMessages(strings.TrimPrefix(line, match)) { // "token: 5ec0ffee is expired"
			return len(match)
		}
		return len(strings.TrimRight(line, " \t'"))
	case !inFile && ofMessage(match) && strings.HasPrefix(line[min(len(match), len(line)):], " "):
		return 0
	case sign || !prose(rest):
		return len(match) + more(line, match)
	}
	clause := clauseOf(line)
	if passphrase(clause) {
		return len(strings.TrimRight(clause, " \t'"))
	}
	return 0
}

// beginsLine says whether only the margin of a line precedes a name. It looks at the end of before only, which may be
// a long log.
func beginsLine(before string) bool {
	if margin := 64; len(before) > margin {
		before = "x" + before[len(before)-margin:]
	}
	return lineStart.MatchString(before)
}

// clauseOf returns a line up to its first punctuation mark.
func clauseOf(line string) string {
	if end := strings.IndexAny(line, ",.;:()"); end >= 0 {
		return line[:end]
	}
	return line
}

// more returns how many bytes of a clause are secret after its first word, which is secret: up to the first word of
// messages.
func more(line, match string) int {
	rest, found := strings.CutPrefix(line, match)
	if !found {
		return 0
	}
	n := 0
	for word := range strings.FieldsSeq(clauseOf(rest)) {
		if ofMessage(word) || !strings.HasPrefix(strings.TrimLeft(rest[n:], " \t"), word) {
			break
		}
		n = strings.Index(rest[n:], word) + n + len(word)
	}
	return n
}

// blockScalar matches the header of a YAML text of several lines.
var blockScalar = regexp.MustCompile(`^[|>][-+0-9]*[ \t]*$`)

// lenOfBlock returns the length of a block scalar with its header. The lines of the block are indented more than the
// name.
func lenOfBlock(before, rest string) int {
	name := before[strings.LastIndexAny(before, "\r\n")+1:]
	n := 0
	for line := range strings.Lines(rest) {
		indent := len(line) - len(strings.TrimLeft(line, " "))
		if n > 0 && strings.TrimSpace(line) != "" && indent <= len(name)-len(strings.TrimLeft(name, " ")) {
			break
		}
		n += len(line)
	}
	return len(strings.TrimRight(rest[:n], "\r\n"))
}

// allOfMessages says whether a line has no words but words of messages.
func allOfMessages(line string) bool {
	return !slices.ContainsFunc(strings.Fields(line), func(w string) bool { return !ofMessage(strings.Trim(w, ".,;!()'`")) })
}

// hideOf keeps the first group of each match, and replaces as many bytes after the group as secret returns.
func hideOf(re *regexp.Regexp, text string, secret func(before, kept, match, rest string) int) string {
	var b strings.Builder
	at := 0
	for {
		m := re.FindStringSubmatchIndex(text[at:])
		if m == nil {
			return b.String() + text[at:]
		}
		from, behind, end := at+m[2], at+m[3], at+m[1]
		b.WriteString(text[at:behind])
		at = behind // a text that is no secret may be the name of another field
		if n := secret(text[:from], text[from:behind], text[behind:end], text[behind:]); n > 0 {
			b.WriteString(Mark)
			at += n
		}
	}
}

// JSON removes the secrets from JSON, or from lines of JSON. The result is still JSON.
func (r Redactor) JSON(data []byte) []byte { return InJSON(data, r.Text) }

// tokens matches the relevant parts of JSON: strings, with the colon after a name,
// numbers, and the beginnings and ends of objects and lists.
var tokens = regexp.MustCompile(`"(?:[^"\\]|\\.)*"(?:\s*:)?|-?[0-9][0-9.eE+-]*|[{}\]]`)

// secretField matches the names of fields with secret values.
var secretField = regexp.MustCompile(`(?i)(?:` + secretWords + `|` + headers + `)$`)

// InJSON calls hide with every string and number of the JSON, unescaped. It replaces the whole value of a field with
// a secret name. The unfinished part of a line, left by a killed process, becomes a string on a line of its own:
// nobody can tell where the strings within it end.
func InJSON(data []byte, hide func(string) string) []byte {
	if json.Valid(data) {
		return inValid(data, hide)
	}
	var out []byte
	for line := range bytes.Lines(data) {
		text := bytes.TrimSpace(line)
		at := 0 // where valid JSON begins: the next process may have written after the unfinished part
		for at < len(text) && !json.Valid(text[at:]) {
			next := bytes.Index(text[at+1:], []byte(`{"`))
			if next < 0 {
				next = len(text) - at - 1
			}
			at += 1 + next
		}
		if at > 0 {
			quoted, _ := json.Marshal(hide(string(text[:at]))) // a string can always be encoded
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

// textOf returns the value of a string or number; false if the string is not valid JSON.
func textOf(literal []byte) (text string, ok bool) {
	if literal[0] != '"' {
		return string(literal), true
	}
	err := json.Unmarshal(literal, &text)
	return text, err == nil
}

// Growing returns a hide for the logs of a run, which only grow and are renamed: it hides only the text written since
// the last call.
func Growing(hide func([]byte) []byte) func([]byte) []byte {
	type part struct{ text, hidden []byte }
	var known []part // the log, the log before, and a log that replaces one of them
	return func(data []byte) []byte {
		if json.Valid(data) { // a document, not a log
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
