package machineconfig

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// TestEncrypt has a program in the place of sops, which is called as sops takes its arguments; what it
// writes is used if it has no secret any more.
func TestEncrypt(t *testing.T) {
	const (
		plain = "machine:\n    type: worker\n    token: planted.0123456789\n    ca:\n        key: \"\"\n"
		calls = `[ "$*" = "--encrypt --input-type yaml --output-type yaml --filename-override $PWD/wk1.yaml /dev/stdin" ] || exit 9; cat >in; `
	)
	for name, tc := range map[string]struct {
		script    string // of sops; "": there is none
		err, hint string
	}{
		"encrypted":            {script: calls + `printf 'machine:\n    token: ENC[AES256_GCM,data:b,type:str]\n    ca:\n        key: ""\nsops:\n    mac: ENC[AES256_GCM,data:y,type:str]\n'`},
		"a secret left out":    {calls + `printf 'machine:\n    type: ENC[AES256_GCM,data:b,type:str]\n    token: planted.0123456789\nsops:\n    mac: ENC[AES256_GCM,data:y,type:str]\n'`, "sops leaves a secret in the clear", "encrypted_regex"},
		"not encrypted at all": {calls + "cat in", "sops leaves a secret in the clear", "nothing was written"},
		"no rule for it":       {calls + "echo 'error loading config: no matching creation rules found; planted.0123456789' >&2; exit 1", "no matching creation rules found; [redacted]", ".sops.yaml"},
		"no sops":              {"", "there is no sops in PATH", "install sops"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if tc.script != "" {
				w.program("sops", tc.script)
			}
			text, err := w.options.Encrypt(t.Context(), w.options.Base+"/wk1.yaml", cluster.Secret(plain))
			switch {
			case tc.err == "" && (err != nil || encryption(text) != "sops"):
				t.Errorf("%s, %v", text, err)
			case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err) || !strings.Contains(strings.Join(fault.Hints(err), "\n"), tc.hint) || text != nil):
				t.Errorf("%s, %v, hints %q", text, err, fault.Hints(err))
			}
		})
	}
}
