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
	// firstWord is a word that another one follows, or that ends a link of a chain of errors. Longer ones, and
	// those with capitals inside, are rather secrets.
	firstWord = regexp.MustCompile(`^(?:x509:|[1-5][0-9]{2}[ \t]+[A-Z][a-z]|(?:[A-Za-z][a-z]{0,14}|[A-Z]{2,12})(?:['’][a-z]+)?(?::|[.,;]?[ \t]+(?:[A-Za-z]+(?:[^\w=+/@!-]|$)|[0-9]{1,4}(?:[^\w]|$)|["'(]|\.{0,2}/)))`)
	path      = regexp.MustCompile(`^\.{0,2}/[\w./-]+:`)
)

// verdicts are words that are alone behind the name of a field, and say something of it.
var verdicts = []string{
	"absent", "denied", "disabled", "empty", "enabled", "expired", "false", "forbidden", "given", "hidden", "invalid", "missing", "none", "null",
	"optional", "rejected", "required", "revoked", "set", "true", "unauthorized", "unknown", "unset", "wrong",
}

// Word says whether a text is one plain word, such as messages are made of.
func Word(text string) bool { return word.MatchString(text) }

// prose says whether a sentence goes on where a secret could be: "read the token: permission denied".
func prose(rest string) bool {
	end := strings.IndexAny(rest, "\r\n")
	if end < 0 {
		end = len(rest)
	}
	line := rest[:end]
	return firstWord.MatchString(line) || path.MatchString(line) || verdict(line)
}

// verdict says whether a line is one word that says something of a field.
func verdict(line string) bool {
	return slices.Contains(verdicts, strings.ToLower(strings.TrimRight(line, ".,;:!)]}")))
}

// unless keeps a whole match if is says so.
func unless(is func(match, rest string) bool) func(before, kept, match, rest string) int {
	return func(_, _, match, rest string) int {
		if is(match, rest) {
			return 0
		}
		return len(match)
	}
}

// afterColon is the name of a field with a secret value, unquoted, as in YAML and in a chain of errors; afterSign
// is one in a file like KEY = VALUE.
var (
	afterColon = regexp.MustCompile(`(?i)(?:` + secretWords + `|` + headers + `)[ \t]*:\s*$`)
	afterSign  = regexp.MustCompile(`(?i)(?:` + secretWords + `)[ \t]+=[ \t]+$`)
	// lineStart is what may stand before the name of a field in a file, a diff of it, or a list.
	lineStart = regexp.MustCompile(`(?:^|[\r\n"'` + "`" + `]|\\[nrt])(?:[ \t]|[-+>|*#]|\d+[:|])*$`)
	words     = regexp.MustCompile(`^[A-Za-z]+(?:['’][a-z]+)?$`)
)

// ofMessages are words that messages are made of. A passphrase of several words is not of these alone, and what follows a
// name in one of our sentences begins with one, or with more than words.
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

// passphrase says whether a clause is several plain words of which none is one of a message.
func passphrase(clause string) bool {
	list := strings.Fields(clause)
	return len(list) > 1 && !slices.ContainsFunc(list, func(w string) bool { return !words.MatchString(w) || ofMessage(w) })
}

// lineOf is text up to the end of its line, of its quotes or of what it is escaped in.
func lineOf(text string) string {
	if end := strings.IndexAny(text, "\r\n\"\\"); end >= 0 {
		return text[:end]
	}
	return text
}

// secretIn is how much of what follows the name of a field is secret: before is all that precedes the name, kept the
// name with its sign, match the first word behind it, rest all from there on. In a file, where the name begins the line, the
// whole line is, unless it is made of words of messages alone, or can't be a value there: a plain one in YAML has no ": "
// (YAML 1.2.2, 7.3.3). In a sentence only what can be no word of it is.
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

// beginsLine says whether only the margin of a line is before a name. It looks at little of what may be a long log.
func beginsLine(before string) bool {
	if margin := 64; len(before) > margin {
		before = "x" + before[len(before)-margin:]
	}
	return lineStart.MatchString(before)
}

// clauseOf is a line up to its first mark.
func clauseOf(line string) string {
	if end := strings.IndexAny(line, ",.;:()"); end >= 0 {
		return line[:end]
	}
	return line
}

// more is how many bytes of a clause are secret behind its first word, which is: up to the first word of a message.
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

// blockScalar is the header of a text of several lines in YAML.
var blockScalar = regexp.MustCompile(`^[|>][-+0-9]*[ \t]*$`)

// lenOfBlock is how long such a text is, which begins with its header: its lines are indented more than the name.
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

// allOfMessages says whether a line has words of messages only, if any.
func allOfMessages(line string) bool {
	return !slices.ContainsFunc(strings.Fields(line), func(w string) bool { return !ofMessage(strings.Trim(w, ".,;!()'`")) })
}

// hideOf replaces so much of what follows the first group of a pattern, which is kept, as secret says.
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
		at = behind // what is no secret may be the name of another field
		if n := secret(text[:from], text[from:behind], text[behind:end], text[behind:]); n > 0 {
			b.WriteString(Mark)
			at += n
		}
	}
}

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
