// Package redact takes secrets out of texts that others have written: what a hook
// has printed, what a server has answered.
package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Mark stands where a secret was.
const Mark = "[redacted]"

// shortest is how long a secret is at least: shorter ones are words.
const shortest = 8

// Redactor takes out the secrets that it was told, however they are written, and
// what looks like one.
type Redactor struct{ known *strings.Replacer }

// New knows these secrets.
func New(secrets []string) Redactor {
	var forms []string
	for _, secret := range secrets {
		secret = strings.TrimSpace(secret)
		if len(secret) < shortest {
			continue
		}
		forms = append(forms, formsOf(secret)...)
	}
	slices.SortFunc(forms, func(a, b string) int { return len(b) - len(a) }) // the longest first: one may be part of another
	var pairs []string
	for _, form := range slices.Compact(forms) {
		pairs = append(pairs, form, Mark)
	}
	return Redactor{strings.NewReplacer(pairs...)}
}

// formsOf is a secret as it may be written: as it is, in JSON, in a URL, in
// base64, and each line of it.
func formsOf(secret string) []string {
	forms := []string{secret, url.QueryEscape(secret), url.PathEscape(secret), base64.StdEncoding.EncodeToString([]byte(secret)), base64.RawURLEncoding.EncodeToString([]byte(secret))}
	if quoted, err := json.Marshal(secret); err == nil {
		forms = append(forms, strings.Trim(string(quoted), `"`))
	}
	if plain, err := base64.StdEncoding.DecodeString(secret); err == nil && len(plain) >= shortest {
		forms = append(forms, string(plain))
		forms = append(forms, linesIn(string(plain))...)
	}
	return append(forms, linesIn(secret)...)
}

func linesIn(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); len(line) >= 2*shortest && !strings.HasPrefix(line, "-----") {
			out = append(out, line)
		}
	}
	return out
}

// looks are what secrets look like, and what stays of them: tokens of Proxmox,
// Kubernetes and forges, keys, what a machine configuration names so, passwords in URLs,
// where a NoCloud serial has its configuration from. A text may quote another: an
// escape before a secret is no part of it, nor is the quote behind it.
var looks = []struct {
	like  *regexp.Regexp
	stays string
}{
	{regexp.MustCompile(`-----BEGIN [A-Z0-9 ]+-----(?:[^"\\]|\\[^"])*?-----END [A-Z0-9 ]+-----`), ""},
	{regexp.MustCompile(`-----BEGIN [A-Z0-9 ]+-----(?:[^"\\]|\\[^"])*`), ""}, // cut off
	{regexp.MustCompile(`LS0tLS1CRUdJTi[A-Za-z0-9+/=]+`), ""},                // "-----BEGIN" in base64
	{regexp.MustCompile(`AGE-SECRET-KEY-1[A-Z0-9]+`), ""},
	{regexp.MustCompile(`(?i)(PVEAPIToken=)(?:[^\s"'\\,;]|\\[^\s"'])+`), "${1}"},
	{regexp.MustCompile(`([\w.+-]+@[\w.-]+![\w.-]+=)(?:[^\s"'\\,;]|\\[^\s"'])+`), "${1}"},
	{regexp.MustCompile(`(?i)(` + begins + `(?:bearer|basic) )[A-Za-z0-9+/_=.~-]{8,}`), "${1}"},
	{regexp.MustCompile(`(?i)((?:` + headers + `)\\?["']?\s*[:=]\s*\\?["']?)[^\r\n"'\\,;]+`), "${1}"},
	{regexp.MustCompile(secretName + `\\")(?:[^"\\]|\\[^"])+`), "${1}"}, // JSON within JSON
	{regexp.MustCompile(secretName + `")(?:[^"\\]|\\.)+`), "${1}"},
	{regexp.MustCompile(secretName + `')[^'\r\n]+`), "${1}"},
	{regexp.MustCompile(secretName + `)[^\s"'\\,;&{}\[\]]+`), "${1}"},
	{regexp.MustCompile(`(` + begins + `)eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?`), "${1}"},
	{regexp.MustCompile(`(` + begins + `)(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|AKIA[0-9A-Z]{16})`), "${1}"},
	{regexp.MustCompile(`(hooks\.slack\.com/services/)` + unquoted), "${1}"},
	{regexp.MustCompile(`(ds=nocloud[\w-]*;)` + unquoted), "${1}"},
	{regexp.MustCompile(`([a-z][a-z0-9+.-]*://)(?:[^\s/@"'\\]|\\[^\s"'])+@`), "${1}" + Mark + "@"},
	{regexp.MustCompile(`(https?://[^\s"'\\?#]+\?)` + unquoted), "${1}"},
	{regexp.MustCompile(`(` + begins + `)(?:ssh-(?:rsa|ed25519|dss)|ecdsa-sha2-[a-z0-9-]+) [A-Za-z0-9+/=]{20,}`), "${1}"},
	{regexp.MustCompile(`(` + begins + `)[A-Za-z0-9+/]{90,}={0,2}`), "${1}"},    // base64 longer than any digest
	{regexp.MustCompile(`(` + begins + `)[a-z0-9]{6}\.[a-z0-9]{16}\b`), "${1}"}, // a bootstrap token of Kubernetes, or of Talos
}

const (
	// begins is where a word does: behind an escaped line feed, too.
	begins = `(?:\b|\\[nrt])`
	// unquoted is the rest of a word, up to the quote that ends it, escaped or not.
	unquoted = `(?:[^\s"'\\]|\\[^\s"'])+`

	headers     = `PVEAuthCookie|CSRFPreventionToken|set-cookie|cookie|authorization|x-[a-z-]*(?:token|key)`
	secretWords = `password|passwd|passphrase|secret|api_?key|access_?key|private_?key|sshkeys|client-key-data|credentials?|token`
	// secretName is what comes before a secret, as a group that is still open.
	secretName = `(?i)([\w.-]*(?:` + secretWords + `)\\?["']?\s*[:=]\s*`
)

// Text is a text without secrets. What is JSON goes to JSON: here it may lose a quote.
func (r Redactor) Text(text string) string {
	text = r.known.Replace(text)
	for _, look := range looks {
		stays := look.stays
		if !strings.Contains(stays, Mark) {
			stays += Mark
		}
		text = look.like.ReplaceAllString(text, stays)
	}
	return text
}

// variable is how one of the environment is called whose value is secret.
var variable = regexp.MustCompile(`(?i)TOKEN|SECRET|PASSW|PASSPHRASE|KEY|HEADERS|CREDENTIAL|WEBHOOK|_URL$|COOKIE`)

// Environ lists the secrets of an environment ("NAME=value").
func Environ(environ []string) []string {
	var out []string
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		if !variable.MatchString(name) {
			continue
		}
		out = append(out, value)
		if _, secret, found := strings.Cut(value, "="); found {
			out = append(out, secret) // of user@realm!id=secret
		}
	}
	return out
}

// YAML lists the values in a YAML document that are secret by their keys, as
// machine configurations, talosconfigs and kubeconfigs have them. What can't be
// read has none that are known.
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
		if !Named(path, v) && !Foreign(path) {
			return
		}
		if _, value, ok := Variable(path, v); ok {
			v = value
		}
		*out = append(*out, v)
	}
}

// documents are those of a YAML stream that can be read.
func documents(data []byte) []any {
	var out []any
	d := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc any
		if err := d.Decode(&doc); err != nil {
			return out
		}
		out = append(out, doc)
	}
}
