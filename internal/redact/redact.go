// Package redact removes secrets from foreign texts, such as a hook's output or a server's answer. A [Redactor]
// replaces known secrets, and text that looks like a secret, by [Mark].
package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v4"
)

// Mark replaces a secret.
const Mark = "[redacted]"

// minLength is the least length of a known secret in bytes: shorter secrets may be plain words.
const minLength = 8

// Redactor removes the secrets given to New, in every encoding of formsOf, and text that matches patterns.
type Redactor struct {
	known *strings.Replacer
	words *regexp.Regexp // known secrets that are plain words, which may be parts of other words; nil: none
}

func New(secrets []string) Redactor {
	var forms, words []string
	for _, secret := range secrets {
		secret = strings.TrimSpace(secret)
		if len(secret) < minLength {
			continue
		}
		for _, form := range formsOf(secret) {
			if Word(form) {
				words = append(words, form)
			} else {
				forms = append(forms, form)
			}
		}
	}
	slices.SortFunc(forms, func(a, b string) int { return len(b) - len(a) }) // longest first: a form may be part of another
	var pairs []string
	for _, form := range slices.Compact(forms) {
		pairs = append(pairs, form, Mark)
	}
	r := Redactor{known: strings.NewReplacer(pairs...)}
	if len(words) > 0 {
		r.words = regexp.MustCompile(wordStart + `(?:` + strings.Join(words, "|") + `)\b`)
	}
	return r
}

// formsOf returns a secret in its likely encodings (plain, JSON, URL, base64), and each line of the secret.
func formsOf(secret string) []string {
	forms := []string{secret, url.QueryEscape(secret), url.PathEscape(secret), base64.StdEncoding.EncodeToString([]byte(secret)), base64.RawURLEncoding.EncodeToString([]byte(secret))}
	if quoted, err := json.Marshal(secret); err == nil {
		forms = append(forms, strings.Trim(string(quoted), `"`))
	}
	if plain, err := base64.StdEncoding.DecodeString(secret); err == nil && len(plain) >= minLength {
		forms = append(forms, string(plain))
		forms = append(forms, linesIn(string(plain))...)
	}
	return append(forms, linesIn(secret)...)
}

func linesIn(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); len(line) >= 2*minLength && !strings.HasPrefix(line, "-----") {
			out = append(out, line)
		}
	}
	return out
}

type pattern struct {
	re   *regexp.Regexp
	keep string
	// secret returns how many bytes after the kept part are secret, for a match that may be words of a message. nil: the
	// whole match is secret. See secretIn.
	secret func(before, kept, match, rest string) int
	loose  bool // it hides more than secrets: what has a secret's name before it, addresses with parameters, public keys of SSH
}

// patterns match texts that look like a secret, and say what to keep of a match: tokens of Proxmox, Kubernetes and
// code forges, keys, secret fields of machine configurations, passwords in URLs, the source of a NoCloud serial's
// configuration. The text may be quoted: an escape before a secret and the quote after the secret are not part of it. They are
// compiled when the first text is read, not at each start of recast.
var patterns = sync.OnceValue(func() []pattern {
	return []pattern{
		{regexp.MustCompile(`-----BEGIN [A-Z0-9 ]+-----(?:[^"\\]|\\[^"])*?-----END [A-Z0-9 ]+-----`), "", nil, false},
		{regexp.MustCompile(`-----BEGIN [A-Z0-9 ]+-----(?:[^"\\]|\\[^"])*`), "", nil, false}, // cut off
		{regexp.MustCompile(`LS0tLS1CRUdJTi[A-Za-z0-9+/=]+`), "", nil, false},                // "-----BEGIN" in base64
		{regexp.MustCompile(`AGE-SECRET-KEY-1[A-Z0-9]+`), "", nil, false},
		{regexp.MustCompile(`(?i)(PVEAPIToken=)(?:[^\s"'\\,;]|\\[^\s"'])+`), "${1}", nil, false},
		{regexp.MustCompile(`([\w.+-]+@[\w.-]+![\w.-]+=)(?:[^\s"'\\,;]|\\[^\s"'])+`), "${1}", nil, false},
		{regexp.MustCompile(`(?i)(` + wordStart + `(?:bearer|basic) )[A-Za-z0-9+/_=.~-]{8,}`), "${1}", unless(func(_, rest string) bool { return prose(rest) }), false},
		{regexp.MustCompile(`(?i)((?:` + headers + `)\\?["']?\s*[:=]\s*\\?["']?)[^\r\n"'\\,;]+`), "${1}", secretIn, true},
		{regexp.MustCompile(secretName + `\\")(?:[^"\\]|\\[^"])+`), "${1}", nil, true}, // JSON within JSON
		{regexp.MustCompile(secretName + `")(?:[^"\\]|\\.)+`), "${1}", nil, true},
		{regexp.MustCompile(secretName + `')[^'\r\n]+`), "${1}", nil, true},
		{regexp.MustCompile(secretName + `)[^\s"'\\,;&{}\[\]]+`), "${1}", secretIn, true},
		{regexp.MustCompile(`(` + wordStart + `)eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?`), "${1}", nil, false},
		{regexp.MustCompile(`(` + wordStart + `)(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|AKIA[0-9A-Z]{16})`), "${1}", nil, false},
		{regexp.MustCompile(`(hooks\.slack\.com/services/)` + unquoted), "${1}", nil, false},
		{regexp.MustCompile(`(ds=nocloud[\w-]*;)` + unquoted), "${1}", nil, false},
		{regexp.MustCompile(`([a-z][a-z0-9+.-]*://)(?:[^\s/@"'\\]|\\[^\s"'])+@`), "${1}" + Mark + "@", nil, false},
		{regexp.MustCompile(`(https?://[^\s"'\\?#]+\?)` + unquoted), "${1}", nil, true},
		{regexp.MustCompile(`(` + wordStart + `)(?:ssh-(?:rsa|ed25519|dss)|ecdsa-sha2-[a-z0-9-]+) [A-Za-z0-9+/=]{20,}`), "${1}", nil, true},
		{regexp.MustCompile(`(` + wordStart + `)[A-Za-z0-9+/]{90,}={0,2}`), "${1}", nil, false},                                                                                        // base64 longer than any digest
		{regexp.MustCompile(`(` + wordStart + `)[a-z0-9]{6}\.[a-z0-9]{16}\b`), "${1}", unless(func(match, _ string) bool { return !strings.ContainsAny(match, "0123456789") }), false}, // a bootstrap token of Kubernetes, or of Talos
	}
})

const (
	// wordStart matches the start of a word, also after an escaped line feed.
	wordStart = `(?:\b|\\[nrt])`
	// unquoted matches the rest of a word, up to its closing quote, escaped or not.
	unquoted = `(?:[^\s"'\\]|\\[^\s"'])+`

	headers     = `PVEAuthCookie|CSRFPreventionToken|set-cookie|cookie|authorization|x-[a-z-]*(?:token|key)`
	secretWords = `password|passwd|passphrase|secret|api_?key|access_?key|private_?key|sshkeys|client-key-data|credentials?|token`
	// secretName matches the name before a secret. Its group is left open.
	secretName = `(?i)([\w.-]*(?:` + secretWords + `)\\?["']?\s*[:=]\s*`
)

// Text returns text without secrets. Use JSON for JSON: Text may remove a quote.
func (r Redactor) Text(text string) string {
	text = r.known.Replace(text)
	if r.words != nil {
		text = r.words.ReplaceAllString(text, Mark)
	}
	for _, p := range patterns() {
		if p.secret != nil {
			text = hideOf(p.re, text, p.secret)
			continue
		}
		keep := p.keep
		if !strings.Contains(keep, Mark) {
			keep += Mark
		}
		text = p.re.ReplaceAllString(text, keep)
	}
	return text
}

// surelySecret matches the names of variables whose value is secret even if it is a plain word. KEYMAP has a plain
// word that is no secret.
var surelySecret = regexp.MustCompile(`(?i)TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|WEBHOOK|COOKIE`)

var secretVariable = regexp.MustCompile(`(?i)TOKEN|SECRET|PASSW|PASSPHRASE|KEY|HEADERS|CREDENTIAL|WEBHOOK|_URL$|COOKIE`)

// namesPlace matches the names of variables that hold the place of a secret: messages about the place name it.
var namesPlace = regexp.MustCompile(`(?i)_(?:FILE|DIR|DIRECTORY|PATH)$`)

// Environ lists the secrets of an environment ("NAME=value").
func Environ(environ []string) []string {
	var out []string
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		if !secretVariable.MatchString(name) || Word(value) && !surelySecret.MatchString(name) || namesPlace.MatchString(name) || isPlace(value) {
			continue
		}
		out = append(out, value)
		if _, secret, found := strings.Cut(value, "="); found {
			out = append(out, secret) // the secret in user@realm!id=secret
		}
	}
	return out
}

// isPlace says whether a value is the absolute path of an existing file or directory, as in
// GOOGLE_APPLICATION_CREDENTIALS.
func isPlace(value string) bool {
	_, err := os.Stat(value)
	return filepath.IsAbs(value) && err == nil
}

// references are what stands for a secret in a file: a template's field, a variable, a command.
var references = regexp.MustCompile(`\$?\{\{.*?\}\}|\$\{[^}]*\}|\$\([^)]*\)|\$\w+`)

// allowed are long texts that are no secrets: certificates, public keys, and what sops has encrypted.
var allowed = regexp.MustCompile(`LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS[A-Za-z0-9+/=]+|ENC\[[^\]]*\]|-----BEGIN (?:CERTIFICATE|PUBLIC KEY|AGE ENCRYPTED FILE)-----`)

// assignment is one of a script.
var assignment = regexp.MustCompile(`(?m)^[ \t]*(?:export[ \t]+)?(\w+)=["']?([^\s"']+)`)

// Holds says what in a file of that name is secret, with its field or its line; "": nothing is. References to secrets
// are none, nor is what sops has encrypted, nor a certificate, nor an example without a digit.
func Holds(name string, data []byte) string {
	text := references.ReplaceAllString(string(data), "")
	structured := slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
	if structured {
		for _, doc := range documents([]byte(text)) {
			if at := firstSecret(doc, nil); at != "" {
				return "a secret in its field " + at
			}
		}
	}
	text = allowed.ReplaceAllString(text, "")
	inLine := func(at int) string {
		return fmt.Sprintf("a key, a token or a login in line %d", strings.Count(text[:at], "\n")+1)
	}
	for _, p := range patterns() {
		for _, at := range p.re.FindAllStringSubmatchIndex(text, -1) {
			from := at[0]
			if len(at) > 2 {
				from = at[3]
			}
			secret := text[from:at[1]]
			isSecret := p.secret == nil || p.secret(text[:at[0]], text[at[0]:from], secret, text[at[1]:]) > 0
			isExample := p.keep != "" && !strings.ContainsAny(secret, "0123456789")
			if isSecret && !isExample && !p.loose {
				return inLine(at[0])
			}
		}
	}
	for _, at := range assignment.FindAllStringSubmatchIndex(text, -1) {
		if pair := text[at[2]:at[3]] + "=" + text[at[4]:at[5]]; !structured && len(Environ([]string{pair})) > 0 {
			return inLine(at[0])
		}
	}
	return ""
}

// firstSecret returns the path of the first field, in the order of their names, that is secret by its name.
func firstSecret(v any, path []string) string {
	switch v := v.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if at := firstSecret(v[key], append(slices.Clip(path), key)); at != "" {
				return at
			}
		}
	case []any:
		for _, value := range v {
			if at := firstSecret(value, path); at != "" {
				return at
			}
		}
	case string:
		refers := slices.ContainsFunc(path, func(key string) bool { return key == "sops" || strings.HasSuffix(key, "KeyRef") })
		if v != "" && Named(path, v) && !refers && !public.MatchString(path[len(path)-1]) && !strings.HasPrefix(v, "ENC[") {
			return strings.Join(path, ".")
		}
	}
	return ""
}

var public = regexp.MustCompile(`(?i)^(?:crt|.*certificate(?:-authority)?-data)$`)

// YAML lists the values in a YAML stream whose keys mark them as secret, as in machine configurations, talosconfigs
// and kubeconfigs.
func YAML(data []byte) []string {
	var out []string
	for _, doc := range documents(data) {
		collect(doc, nil, &out)
	}
	return out
}

func collect(v any, path []string, out *[]string) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			collect(value, append(slices.Clip(path), key), out)
		}
	case []any:
		for _, value := range v {
			collect(value, path, out)
		}
	case string:
		if !Named(path, v) && (!Foreign(path) || Word(v)) {
			return
		}
		if _, value, ok := Variable(path, v); ok {
			v = value
		}
		*out = append(*out, v)
	}
}

// documents returns the documents of a YAML stream. Of one that can't be parsed it returns the lines that have a key
// and a value: a file with a mistake in one document has secrets all the same.
func documents(data []byte) []any {
	var out []any
	for _, text := range documentStart.Split(string(data), -1) {
		var doc any
		if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
			lines := map[string]any{}
			for i, line := range keyAndValue.FindAllStringSubmatch(text, -1) {
				lines[strconv.Itoa(i)] = map[string]any{line[1]: strings.Trim(line[2], `"'`)}
			}
			doc = lines
		}
		out = append(out, doc)
	}
	return out
}

var (
	documentStart = regexp.MustCompile(`(?m)^---(?:[ \t\r]|$)`)
	keyAndValue   = regexp.MustCompile(`(?m)^[ \t-]*([\w.-]+):[ \t]+(\S.*?)[ \t\r]*$`)
)

// secretKey matches the names of fields whose values are always secret.
var secretKey = regexp.MustCompile(`(?i)^(?:auth|.*-(?:key-data|data)|.*(?:token|secret|password|passwd|passphrase|credentials?)` +
	`|.*(?:api|access|auth|private|shared|signing|encryption|secret)[_-]?key|clusterid)$`)

// longKey matches fields whose long values are secret: a short value is not a cryptographic key.
var longKey = regexp.MustCompile(`(?i)^(?:key|crt)$`)

const longValue = 40

// labels match the parents under which a field called key names a label or the like.
var labels = regexp.MustCompile(`(?i)^(?:(?:registerWith)?taints|tolerations|match(?:Label)?Expressions|matchFields|items)$`)

// Named says whether the name of the field at path, with that value, makes the value secret. path is the keys from
// the top, without list indices. Named covers at least the fields of Talos' own RedactSecrets (machinery,
// config/container/container.go).
func Named(path []string, value string) bool {
	if len(path) == 0 {
		return false
	}
	last := path[len(path)-1]
	switch {
	case secretKey.MatchString(last):
		return true
	case longKey.MatchString(last) && len(value) >= longValue:
		return true
	case strings.EqualFold(last, "key"):
		return !slices.ContainsFunc(path, labels.MatchString)
	case len(path) == 2 && path[0] == "cluster" && last == "id": // anyone who knows the ID can ask the discovery service for the members
		return true
	}
	return false
}

// foreign matches fields with other programs' texts, which may contain secrets anywhere:
// files, manifests, environments, request headers, SideroLink's URL with its token.
var foreign = regexp.MustCompile(`(?i)^(?:contents?|manifest|data|stringData|headers|extraManifestHeaders|env|environment|variables|apiUrl)$`)

var proxies = regexp.MustCompile(`(?i)^(?:https?|no|all)_proxy$`)

// Foreign says whether the field at path holds another program's text. Any part of such a text may be secret.
func Foreign(path []string) bool {
	if !slices.ContainsFunc(path, foreign.MatchString) {
		return false
	}
	last := path[len(path)-1]
	return last != "name" && !proxies.MatchString(last)
}

// Variable splits a "NAME=value" entry of an environment list. The name is not secret.
func Variable(path []string, text string) (name, value string, ok bool) {
	if len(path) == 0 || !slices.Contains([]string{"env", "environment"}, path[len(path)-1]) {
		return "", "", false
	}
	return strings.Cut(text, "=")
}

// KernelArg returns a kernel argument in a form that may be shown, and the argument's name if its value is secret.
func KernelArg(arg string) (shown, secret string) {
	arg = strings.Trim(arg, `"`)
	name, value, _ := strings.Cut(strings.TrimPrefix(arg, "-"), "=")
	if value == "" || !secretArg(name, arg, value) {
		return arg, ""
	}
	return strings.TrimSuffix(arg, value) + Mark, name
}

var (
	userInURL       = regexp.MustCompile(`://[^/?#]*@`)
	secretParameter = regexp.MustCompile(`(?i)(secret|passw(or)?d|passphrase|token|(api|access|private)[_-]?key)=[^&]`)
	// filledIn matches a value that Talos fills in when it requests its configuration (download/url.go).
	filledIn = regexp.MustCompile(`^(\$\{\w+\})?$`)
)

func secretArg(name, arg, value string) bool {
	switch {
	case name == "talos.config.inline", name == "talos.config.early": // the configuration itself
		return true
	case userInURL.MatchString(value), secretParameter.MatchString(arg):
		return true
	case name != "talos.config":
		return false
	}
	u, err := url.Parse(value)
	if err != nil {
		return true
	}
	for _, values := range u.Query() { // such as the parameters of a signed URL
		if slices.ContainsFunc(values, func(v string) bool { return !filledIn.MatchString(v) }) {
			return true
		}
	}
	return false
}

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

// prose says whether rest continues a sentence in a place where a secret could be: "read the token: permission denied".
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

func ofMessage(text string) bool { return slices.Contains(ofMessages, strings.ToLower(text)) }

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
