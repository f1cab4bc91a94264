package redact_test

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/redact"
	"github.com/recast-sh/recast/internal/sim/must"
)

const secret = "6f1d3c58-aaaa-bbbb-cccc-0123456789ab"

func TestRedactor(t *testing.T) {
	t.Parallel()
	s := redact.New([]string{secret, "hunter2!\"<quoted>", "short"})
	for _, text := range []string{
		secret, base64.StdEncoding.EncodeToString([]byte(secret)), `{"error":"hunter2!\"\u003cquoted\u003e"}`, "hunter2%21%22%3Cquoted%3E",
	} {
		if got := s.Text("before " + text + " after"); strings.Contains(got, text) || !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") {
			t.Errorf("%q became %q", text, got)
		}
	}
	must.Equal(t, "a word", "a short word stays", s.Text("a short word stays"))
}

func TestSecretPatterns(t *testing.T) {
	t.Parallel()
	s := redact.New(nil)
	for text, want := range map[string]string{
		"Authorization: PVEAPIToken=root@pam!x=abc-def":                             "Authorization: [redacted]",
		"token root@pam!x=abc-def, refused":                                         "token root@pam!x=[redacted], refused",
		"sent Bearer abcdef0123456789 to it":                                        "sent Bearer [redacted] to it",
		"GET https://u:pw@h.example/a?sig=abc failed":                               "GET https://[redacted]@h.example/a?[redacted] failed",
		`{"cipassword":"hush","cores":2}`:                                           `{"cipassword":"[redacted]","cores":2}`,
		`{"line":"{\"password\":\"hush hush\"}"}`:                                   `{"line":"{\"password\":\"[redacted]\"}"}`,
		`{"password":"hu\"sh","a":1}`:                                               `{"password":"[redacted]","a":1}`,
		`--password='hush hush' x`:                                                  `--password='[redacted]' x`,
		"password: hush":                                                            "password: [redacted]",
		"-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\nrest":         "[redacted]\nrest",
		`{"a":"-----BEGIN KEY-----\nMII","b":1}`:                                    `{"a":"[redacted]","b":1}`,
		"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKz me@here":                           "[redacted] me@here",
		"join with abcdef.0123456789abcdef":                                         "join with [redacted]",
		strings.Repeat("Ab1/", 30) + "==":                                           "[redacted]",
		"sha256-" + strings.Repeat("ab", 32):                                        "sha256-" + strings.Repeat("ab", 32),
		"roll/workers/wk1/take-down/drain: gave up after 10m0s; last seen: pod a/b": "roll/workers/wk1/take-down/drain: gave up after 10m0s; last seen: pod a/b",
	} {
		must.Equal(t, text, want, s.Text(text))
	}
}

// TestWordsOfMessages: a sentence that goes on behind a word for something secret is no secret.
func TestWordsOfMessages(t *testing.T) {
	t.Parallel()
	s := redact.New(append(redact.Environ([]string{"KEYMAP=cancelled", "ADMIN_PASSWORD=recreates"}), redact.YAML([]byte("machine: {env: {STAGE: production}}"))...))
	for _, text := range []string{
		"read the token: open /run/secrets/token: permission denied",
		"recast.yaml:5:3: proxmox.token: unknown key",
		"images.password: required",
		"the API: authorization: permission denied for wk1",
		"basic authentication failed, bearer authentication is off",
		"credentials: expired.",
		"kubelet: api-key: ./key.pem: no such file",
		"it is cancelled, in production",
		"docker.containerregistry is the name",
		"the roll was recreatesomething",
	} {
		must.Equal(t, text, text, s.Text(text))
	}
	for text, want := range map[string]string{
		"password: swordfish":                 "password: [redacted]",
		"password=swordfish is wrong":         "password=[redacted] is wrong",
		"Authorization: Token a1b2c3d4e5":     "Authorization: [redacted]",
		"token: 5ec0ffee-1ab0 is expired":     "token: [redacted] is expired",
		"the roll recreates wk1":              "the roll [redacted] wk1",
		"api_key: sk-live-abc and more of it": "api_key: [redacted] and more of it",
	} {
		must.Equal(t, text, want, s.Text(text))
	}
}

// TestPassphrases: a secret of several words is hidden to its end: in a file, where its name begins a line, and at the end of a
// sentence.
func TestPassphrases(t *testing.T) {
	t.Parallel()
	s := redact.New(nil)
	for text, want := range map[string]string{
		"password: correct horse battery staple":                                     "password: [redacted]",
		"  passphrase: correct horse battery staple\nname: x":                        "  passphrase: [redacted]\nname: x",
		"- cipassword: the quick brown fox":                                          "- cipassword: [redacted]",
		"keys:\n  - static:\n      passphrase: my dog has fleas, and more\n  - x: y": "keys:\n  - static:\n      passphrase: [redacted]\n  - x: y",
		"+    token: open sesame":                                                    "+    token: [redacted]",
		"12:  secret: Tr0ub4dor and three":                                           "12:  secret: [redacted]",
		"password: it is a long way":                                                 "password: [redacted]",
		"password = correct horse battery staple":                                    "password = [redacted]",
		"password = swordfish is wrong":                                              "password = [redacted] is wrong",
		"credentials:\n  password: correct horse\n  user: me":                        "credentials:\n  password: [redacted]\n  user: me",
		"passphrase: |\n  correct horse\n  battery\nname: x":                         "passphrase: [redacted]\nname: x",
		"  passphrase: >-\n    correct horse\n\n    battery\n  name: x":              "  passphrase: [redacted]\n  name: x",
		"passphrase:\n  correct horse battery":                                       "passphrase:\n  [redacted]",
		`{"log":"password: correct horse battery staple\nnext"}`:                     `{"log":"password: [redacted]\nnext"}`,
		`{"password":"correct horse, battery"}`:                                      `{"password":"[redacted]"}`,
		`said "a\n  token: open sesame"`:                                             `said "a\n  token: [redacted]"`,
		"login failed with password: correct horse battery staple":                   "login failed with password: [redacted]",
		"the hook says password: correct horse battery staple, and ends":             "the hook says password: [redacted], and ends",
		"the hook says password: Tr0ub4dor horse staple is wrong":                    "the hook says password: [redacted] is wrong",
		"wk1: token: 5ec0ffee refused":                                               "wk1: token: [redacted] refused",
	} {
		must.Equal(t, text, want, s.Text(text))
	}
}

// TestOwnSentences: what recast and those whose errors it passes on say of something secret stays whole.
func TestOwnSentences(t *testing.T) {
	t.Parallel()
	s := redact.New(nil)
	for _, text := range []string{
		"holds a user or password: secrets never live in this file, urlEnv names a variable",
		"https://cp1.example:6443 does not accept the kubeconfig's credentials: Unauthorized",
		"https://cp1.example:6443 does not accept the kubeconfig's credentials: the server has asked for the client to provide credentials",
		"read the token: open /run/secrets/token: no such file or directory",
		"read the token: context deadline exceeded",
		"read the token: unexpected EOF",
		"read the token: connection refused",
		"read the token: unexpected status code 401 Unauthorized: access denied",
		"token: open /run/secrets/token: permission denied",
		"token: not found",
		"token: permission denied",
		"token: no such file or directory",
		"secret: is required",
		"credentials: expired",
		"credentials of the kubeconfig: exec plugin is not supported",
		"recast.yaml:5:3: proxmox.token: unknown key",
		"recast.yaml:5:3: notify[0].password: must be text, not a list",
		"images.password: required",
		"password: must not be empty",
		"x-auth-token: missing",
		"the rule in .sops.yaml must not leave out values that are secret: see encrypted_regex and unencrypted_regex there",
		"problems:\n  token: can't be read\n  password: is empty",
		"spec:\n  secret:\n    name: data\n    optional: true",
		"wk1: the machine's token: it differs from cp1's",
		"the cluster's secret: it is another one",
		"https://cp1.example:6443 does not accept the kubeconfig's credentials: x509: certificate has expired or is not yet valid",
		"gate has-token: 503 Service Unavailable",
	} {
		must.Equal(t, text, text, s.Text(text))
	}
}

// A text that quotes another keeps its quotes and escapes.
func TestWhatIsQuoted(t *testing.T) {
	t.Parallel()
	s := redact.New(nil)
	for text, want := range map[string]string{
		`said "Get \"https://h/?a=b\": dial"`:          `said "Get \"https://h/?[redacted]\": dial"`,
		`said "as \"root@pam!x=abc-def\": 401"`:        `said "as \"root@pam!x=[redacted]\": 401"`,
		`said "https://u:p\w@h"`:                       `said "https://[redacted]@h"`,
		`said "a\nghp_0123456789abcdefghij"`:           `said "a\n[redacted]"`,
		`said "a\nabcdef.0123456789abcdef"`:            `said "a\n[redacted]"`,
		`said "a\n` + strings.Repeat("Ab1/", 30) + `"`: `said "a\n[redacted]"`,
		`the SMBIOS serial "ds=nocloud;s=http://x/y/"`: `the SMBIOS serial "ds=nocloud;[redacted]"`,
	} {
		must.Equal(t, text, want, s.Text(text))
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	s := redact.New([]string{secret, "87654321"})
	for text, want := range map[string]string{
		`{"a": 1.5e3, "b": [true, null, "as \u00e9 it was"]}`:                    `{"a": 1.5e3, "b": [true, null, "as \u00e9 it was"]}`,
		`{"error":"Get \"https://cp1:6443/api?x=y\": dial"}`:                     `{"error":"Get \"https://cp1:6443/api?[redacted]\": dial"}`,
		`{"error":"said\nghp_0123456789abcdefghij"}`:                             `{"error":"said\n[redacted]"}`,
		`{"error":"--password='hush\" x","a":1}`:                                 `{"error":"--password='[redacted]","a":1}`,
		`{"error":"{\"password\":\"hu\\\"sh\"}"}`:                                `{"error":"{\"password\":\"[redacted]\"}"}`,
		`{"a":{"Token" : "hush","secret":true,"apiKey":7,"password":""}}`:        `{"a":{"Token" : "[redacted]","secret":true,"apiKey":"[redacted]","password":""}}`,
		`{"token":["hush","hush"],"a":["b"]}`:                                    `{"token":["[redacted]","[redacted]"],"a":["b"]}`,
		`{"token":{"a":"b"}}`:                                                    `{"token":{"a":"b"}}`,
		`{"` + secret + `":"` + secret + `","n":87654321}`:                       `{"[redacted]":"[redacted]","n":"[redacted]"}`,
		"{\"error\":\"password=hush\n{\"error\":\"password=hush\"}\n":            "\"{\\\"error\\\":\\\"password=[redacted]\"\n{\"error\":\"password=[redacted]\"}\n",
		`{"error":"password=hush{"error":"as root@pam!x=abc-def"}`:               `"{\"error\":\"password=[redacted]"` + "\n" + `{"error":"as root@pam!x=[redacted]"}`,
		`{"error":"password=hush`:                                                `"{\"error\":\"password=[redacted]"`,
		`{"a":"-----BEGIN KEY-----\nMII` + "\"}\n" + `{"b":"-----END KEY-----"}`: `{"a":"[redacted]` + "\"}\n" + `{"b":"-----END KEY-----"}`,
	} {
		got := string(s.JSON([]byte(text)))
		must.Equal(t, text, want, got)
		for line := range strings.Lines(got) {
			must.Equal(t, line+" is JSON", true, json.Valid([]byte(line)))
		}
	}
}

func FuzzJSON(f *testing.F) {
	f.Add("Get \"https://u:p\\w@h/?a=b\\\": dial", "token")
	f.Add("-----BEGIN KEY-----\nMII\\\"", "a")
	f.Add("password='\\\" \x00\xff", "cookie\\")
	s := redact.New([]string{secret})
	f.Fuzz(func(t *testing.T, text, name string) {
		data, err := json.Marshal(map[string]any{name: text, "list": []any{text, 1.5, true, map[string]any{text: nil}}})
		if err != nil {
			return // nothing that JSON can say
		}
		got := s.JSON(data)
		must.Hold(t, json.Valid(got), "%s became %s", data, got)
	})
}

func TestYAML(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a1B2", 12)
	got := redact.YAML([]byte(`
machine: {token: abc.def, ca: {crt: short, key: ` + long + `}}
cluster: {secret: hush, aescbcEncryptionSecret: hush2}
taints: [{key: node-role}]
---
a mistake: here: and there
  token: "hush4"
  path: /etc/hosts
--- # the next one
users: [{user: {client-key-data: hush3, client-certificate-data: cert}}]
`))
	want := map[string]bool{"abc.def": true, long: true, "hush": true, "hush2": true, "hush3": true, "cert": true, "hush4": true}
	for _, s := range got {
		must.Hold(t, want[s], "%q is not a secret", s)
		delete(want, s)
	}
	must.Hold(t, len(want) == 0, "not found: %v", want)
	if got := redact.YAML([]byte("{[")); got != nil {
		t.Errorf("secrets of no YAML: %q", got)
	}
}

func TestEnviron(t *testing.T) {
	t.Parallel()
	hide := redact.New(redact.Environ([]string{
		"PROXMOX_VE_API_TOKEN=recast@pve!roll=5ec0ffee-1ab0-4000-8000-000000000001", "GITHUB_TOKEN=plainwords", "HOME=/home/plainly", "SHORT_TOKEN=abc",
		"SOPS_AGE_KEY_FILE=/home/me/age/keys.txt", "CREDENTIALS_DIRECTORY=/run/credentials/recast.service", "GOOGLE_APPLICATION_CREDENTIALS=/proc/self/stat", "GOOGLE_CREDENTIALS=/nowhere/at/all",
	})).Text
	cases := map[string]string{
		"plain words: wk1 drained in 12s, sha256:0123456789abcdef":                   "plain words: wk1 drained in 12s, sha256:0123456789abcdef",
		"the Proxmox token may not make VMs":                                         "the Proxmox token may not make VMs",
		"using recast@pve!roll=5ec0ffee-1ab0-4000-8000-000000000001":                 "using [redacted]",
		"only 5ec0ffee-1ab0-4000-8000-000000000001 of it":                            "only [redacted] of it",
		"other@pve!x=12345678-1ab0-4000-8000-000000000001":                           "other@pve!x=[redacted]",
		"said plainwords in /home/plainly, abc":                                      "said [redacted] in /home/plainly, abc",
		"sops: open /home/me/age/keys.txt: no such file or directory":                "sops: open /home/me/age/keys.txt: no such file or directory",
		"read /run/credentials/recast.service/a, /proc/self/stat":                    "read /run/credentials/recast.service/a, /proc/self/stat",
		"said /nowhere/at/all":                                                       "said [redacted]",
		"Authorization: Bearer abcdefgh12345":                                        "Authorization: [redacted]",
		"curl -H 'X: bearer abcdefgh12345'":                                          "curl -H 'X: bearer [redacted]'",
		"https://user:pass@host/path":                                                "https://[redacted]@host/path",
		"token: abcdef.0123456789abcdef\nnext":                                       "token: [redacted]\nnext",
		"join with abcdef.0123456789abcdef":                                          "join with [redacted]",
		"secretboxEncryptionSecret: \"aGVsbG8=\"":                                    "secretboxEncryptionSecret: \"[redacted]\"",
		"key: LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCg==":                              "key: [redacted]",
		"-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\nafter": "[redacted]\nafter",
		"-----BEGIN PRIVATE KEY-----\nMII cut off":                                   "[redacted]",
		"a eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln b":                              "a [redacted] b",
		"posted to https://hooks.slack.com/services/T0/B0/x":                         "posted to https://hooks.slack.com/services/[redacted]",
		`{"password":"hunter2","user":"u"}`:                                          `{"password":"[redacted]","user":"u"}`,
		"DB_PASSWORD=hunter2 ./run":                                                  "DB_PASSWORD=[redacted] ./run",
	}
	for text, want := range cases {
		must.Equal(t, text, want, hide(text))
	}
}

// TestGrowing: a log that grows, ends in the middle of a line, and is renamed, is hidden as a whole one is, but once.
func TestGrowing(t *testing.T) {
	t.Parallel()
	whole := redact.New(nil).JSON
	hidden := 0
	growing := redact.Growing(func(data []byte) []byte {
		hidden += len(data)
		return whole(data)
	})
	line := `{"error":"password=hush"}` + "\n"
	for _, log := range []string{
		line, line + line, line + line + line[:20], line + line + line, `{"time":"x"}` + "\n" + line, line + line + line + line,
		`{"time":"x"}` + "\n" + line + line, "", "{\n\"password\": \"hush\"\n}",
	} {
		must.Equal(t, log, string(whole([]byte(log))), string(growing([]byte(log))))
	}
	most := 9*len(line) + 60
	must.Hold(t, hidden <= most, "%d bytes were looked at, %d would do", hidden, most)
}
