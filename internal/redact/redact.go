// Package redact removes secrets from foreign texts, such as a hook's output or a server's answer. A [Redactor]
// replaces known secrets, and text that looks like a secret, by [Mark].
package redact

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

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

// patterns match texts that look like a secret, and say what to keep of a match: tokens of Proxmox, Kubernetes and
// code forges, keys, secret fields of machine configurations, passwords in URLs, the source of a NoCloud serial's
// configuration. The text may be quoted: an escape before a secret and the quote after the secret are not part of it.
var patterns = []struct {
	re   *regexp.Regexp
	keep string
	// secret returns how many bytes after the kept part are secret, for a match that may be words of a message. nil:
	// the whole match is secret.
	// See secretIn.
	secret func(before, kept, match, rest string) int
}{
	{regexp.MustCompile(`-----BEGIN [A-Z0-9 ]+-----(?:[^"\\]|\\[^"])*?-----END [A-Z0-9 ]+-----`), "", nil},
	{regexp.MustCompile(`-----BEGIN [A-Z0-9 ]+-----(?:[^"\\]|\\[^"])*`), "", nil}, // cut off
	{regexp.MustCompile(`LS0tLS1CRUdJTi[A-Za-z0-9+/=]+`), "", nil},                // "-----BEGIN" in base64
	{regexp.MustCompile(`AGE-SECRET-KEY-1[A-Z0-9]+`), "", nil},
	{regexp.MustCompile(`(?i)(PVEAPIToken=)(?:[^\s"'\\,;]|\\[^\s"'])+`), "${1}", nil},
	{regexp.MustCompile(`([\w.+-]+@[\w.-]+![\w.-]+=)(?:[^\s"'\\,;]|\\[^\s"'])+`), "${1}", nil},
	{regexp.MustCompile(`(?i)(` + wordStart + `(?:bearer|basic) )[A-Za-z0-9+/_=.~-]{8,}`), "${1}", unless(func(_, rest string) bool { return prose(rest) })},
	{regexp.MustCompile(`(?i)((?:` + headers + `)\\?["']?\s*[:=]\s*\\?["']?)[^\r\n"'\\,;]+`), "${1}", secretIn},
	{regexp.MustCompile(secretName + `\\")(?:[^"\\]|\\[^"])+`), "${1}", nil}, // JSON within JSON
	{regexp.MustCompile(secretName + `")(?:[^"\\]|\\.)+`), "${1}", nil},
	{regexp.MustCompile(secretName + `')[^'\r\n]+`), "${1}", nil},
	{regexp.MustCompile(secretName + `)[^\s"'\\,;&{}\[\]]+`), "${1}", secretIn},
	{regexp.MustCompile(`(` + wordStart + `)eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?`), "${1}", nil},
	{regexp.MustCompile(`(` + wordStart + `)(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|AKIA[0-9A-Z]{16})`), "${1}", nil},
	{regexp.MustCompile(`(hooks\.slack\.com/services/)` + unquoted), "${1}", nil},
	{regexp.MustCompile(`(ds=nocloud[\w-]*;)` + unquoted), "${1}", nil},
	{regexp.MustCompile(`([a-z][a-z0-9+.-]*://)(?:[^\s/@"'\\]|\\[^\s"'])+@`), "${1}" + Mark + "@", nil},
	{regexp.MustCompile(`(https?://[^\s"'\\?#]+\?)` + unquoted), "${1}", nil},
	{regexp.MustCompile(`(` + wordStart + `)(?:ssh-(?:rsa|ed25519|dss)|ecdsa-sha2-[a-z0-9-]+) [A-Za-z0-9+/=]{20,}`), "${1}", nil},
	{regexp.MustCompile(`(` + wordStart + `)[A-Za-z0-9+/]{90,}={0,2}`), "${1}", nil},                                                                                        // base64 longer than any digest
	{regexp.MustCompile(`(` + wordStart + `)[a-z0-9]{6}\.[a-z0-9]{16}\b`), "${1}", unless(func(match, _ string) bool { return !strings.ContainsAny(match, "0123456789") })}, // a bootstrap token of Kubernetes, or of Talos
}

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
	for _, p := range patterns {
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

// secretVariable matches the names of environment variables with secret values.
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

// proxies matches the environment variables that stay visible.
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
