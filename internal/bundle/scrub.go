package bundle

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Redacted stands for a secret.
const Redacted = "[redacted]"

// shortest is how long a secret is at least: shorter ones are words.
const shortest = 8

// Scrubber takes secrets out of text: those that it was told, however they are
// written, and what looks like one.
type Scrubber struct{ known *strings.Replacer }

// NewScrubber knows these secrets.
func NewScrubber(secrets []string) Scrubber {
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
		pairs = append(pairs, form, Redacted)
	}
	return Scrubber{strings.NewReplacer(pairs...)}
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

// looks are what secrets look like, and what is put there instead.
var looks = []struct {
	like *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`-----BEGIN [A-Z0-9 ]+-----[^"]*?-----END [A-Z0-9 ]+-----`), Redacted},
	{regexp.MustCompile(`-----BEGIN [A-Z0-9 ]+-----[^"]*`), Redacted}, // cut off
	{regexp.MustCompile(`(?i)(PVEAPIToken=)[^\s"',;]+`), "${1}" + Redacted},
	{regexp.MustCompile(`([A-Za-z0-9_.-]+@[A-Za-z0-9_.-]+![A-Za-z0-9_.-]+=)[^\s"',;]+`), "${1}" + Redacted},
	{regexp.MustCompile(`(?i)\b(bearer|basic) [A-Za-z0-9+/_=.~-]{8,}`), "${1} " + Redacted},
	{regexp.MustCompile(`(?i)((?:PVEAuthCookie|CSRFPreventionToken|set-cookie|cookie|authorization|x-[a-z-]*(?:token|key))["']?\s*[:=]\s*["']?)[^\r\n"',;]+`), "${1}" + Redacted},
	{regexp.MustCompile(`(?i)("?(?:[a-z0-9_-]*(?:password|passwd|passphrase|secret|api_?key|access_?key|private_?key|sshkeys|bootstraptoken|client-key-data)|token)"?\s*[:=]\s*"?)[^\s"',;&{}\[\]]+`), "${1}" + Redacted},
	{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]+)?`), Redacted},
	{regexp.MustCompile(`([a-z][a-z0-9+.-]*://)[^\s/@"']+@`), "${1}" + Redacted + "@"},
	{regexp.MustCompile(`(https?://[^\s"'?#]+\?)[^\s"']+`), "${1}" + Redacted},
	{regexp.MustCompile(`\b(?:ssh-(?:rsa|ed25519|dss)|ecdsa-sha2-[a-z0-9-]+) [A-Za-z0-9+/=]{20,}`), Redacted},
	{regexp.MustCompile(`\b[A-Za-z0-9+/]{90,}={0,2}`), Redacted},                       // base64 longer than any digest
	{regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`), Redacted},                    // a bootstrap token of Kubernetes, or of Talos
	{regexp.MustCompile(`( ended with -?\d+: )(?:[^\r\n"\\]|\\.)+`), "${1}" + LeftOut}, // what a program of the user's has said
}

// String is text without secrets.
func (s Scrubber) String(text string) string {
	text = s.known.Replace(text)
	for _, look := range looks {
		text = look.like.ReplaceAllString(text, look.by)
	}
	return text
}

// Bytes is String.
func (s Scrubber) Bytes(b []byte) []byte { return []byte(s.String(string(b))) }

// SecretsIn lists the values in a YAML document that are secret by their keys, as
// machine configurations, talosconfigs and kubeconfigs have them. What can't be
// read has none that are known.
func SecretsIn(data []byte) []string {
	var out []string
	for _, doc := range documents(data) {
		collect(doc, false, &out)
	}
	return out
}

var secretKey = regexp.MustCompile(`(?i)^(?:token|secret|password|passphrase|auth|identitytoken|bootstraptoken|aescbcencryptionsecret|secretboxencryptionsecret|.*-(?:key-data|data)|id-token|refresh-token|presharedkey|privatekey|.*secret|.*token|.*password)$`)

// longKey is a key below which long values are secret: a short one is that of a label.
var longKey = regexp.MustCompile(`(?i)^(?:key|crt)$`)

const longValue = 40

func collect(v any, secret bool, out *[]string) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			text, _ := value.(string)
			collect(value, secretKey.MatchString(key) || longKey.MatchString(key) && len(text) >= longValue, out)
		}
	case []any:
		for _, value := range v {
			collect(value, secret, out)
		}
	case string:
		if secret {
			*out = append(*out, v)
		}
	}
}
