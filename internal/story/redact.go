package story

import (
	"regexp"
	"slices"
	"strings"
)

// Redacted stands where a secret was.
const Redacted = "[redacted]"

// Redactor takes secrets out of texts that others have written: what a hook has
// printed, what a server has answered.
type Redactor struct{ known *strings.Replacer }

// secret is a pattern of secrets, and what stays of a match.
type secret struct {
	pattern *regexp.Regexp
	stays   string
}

// secrets are what clusters and their tools have: tokens of Proxmox, Kubernetes and
// forges, keys, what a machine configuration names so, passwords in URLs.
var secrets = []secret{
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(-----END [A-Z0-9 ]*PRIVATE KEY-----|$)`), Redacted},
	{regexp.MustCompile(`LS0tLS1CRUdJTi[A-Za-z0-9+/=]+`), Redacted}, // "-----BEGIN" in base64
	{regexp.MustCompile(`AGE-SECRET-KEY-1[A-Z0-9]+`), Redacted},
	{regexp.MustCompile(`([\w.+-]+@[\w.-]+![\w.-]+)=[0-9a-fA-F-]{8,}`), "${1}=" + Redacted},
	{regexp.MustCompile(`(?i)\b(authorization["']?\s*[:=]\s*["']?)[^"'\r\n]+`), "${1}" + Redacted},
	{regexp.MustCompile(`(?i)\b(bearer|basic) [A-Za-z0-9._~+/=-]{8,}`), "${1} " + Redacted},
	{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]*)?`), Redacted},
	{regexp.MustCompile(`\b(gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|AKIA[0-9A-Z]{16})`), Redacted},
	{regexp.MustCompile(`(hooks\.slack\.com/services/)\S+`), "${1}" + Redacted},
	{regexp.MustCompile(`(://)[^/\s:@]*:[^/\s@]+@`), "${1}" + Redacted + "@"},
	{regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`), Redacted}, // a bootstrap token of Kubernetes
	{regexp.MustCompile(`(?i)([\w.-]*(?:password|passwd|passphrase|secret|token|api_?key|access_?key|private_?key|credentials?)["']?\s*[:=]\s*)(\[redacted\]|"[^"]*"|'[^']*'|[^\s,;}\]]+)`), "${1}" + Redacted},
}

// shortestSecret is how long the value of a variable is at least that is taken for a secret.
const shortestSecret = 8

// NewRedactor knows the secrets of an environment ("NAME=value") beside those that look like one.
func NewRedactor(environ []string) Redactor {
	var values []string
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		if len(value) < shortestSecret || !names.MatchString(name) {
			continue
		}
		values = append(values, value)
		if _, secret, ok := strings.Cut(value, "="); ok && len(secret) >= shortestSecret {
			values = append(values, secret) // of a token of Proxmox, without its name
		}
	}
	// The longest first, or a part of it would stay.
	slices.SortFunc(values, func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, value := range values {
		pairs = append(pairs, value, Redacted)
	}
	return Redactor{strings.NewReplacer(pairs...)}
}

// names are those of variables that hold a secret, not of files that do.
var names = regexp.MustCompile(`(?i)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|ACCESS_?KEY|WEBHOOK_URL)$`)

// Text is a text without them.
func (r Redactor) Text(text string) string {
	if r.known != nil {
		text = r.known.Replace(text)
	}
	for _, s := range secrets {
		text = s.pattern.ReplaceAllString(text, s.stays)
	}
	return text
}
