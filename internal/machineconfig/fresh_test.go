package machineconfig

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/constants"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

func TestKubernetesFor(t *testing.T) {
	t.Parallel()
	newest := "v" + constants.DefaultKubernetesVersion
	for name, tc := range map[string]struct{ talos, wanted, want, err string }{
		"the newest":            {NewestTalos(), "", newest, ""},
		"given":                 {"v1.13.9", "v1.35.4", "v1.35.4", ""},
		"without its v":         {"v1.13.9", "1.35.4", "v1.35.4", ""},
		"none is known":         {"v1.13.9", "", "", ""},
		"too new for it":        {"v1.13.9", newest, "", "is too new to be used with Talos"},
		"too old for it":        {NewestTalos(), "v1.28.0", "", "is too old to be used with Talos"},
		"no version":            {NewestTalos(), "latest", "", "Kubernetes latest with Talos"},
		"a Talos too old":       {"v1.11.0", "v1.31.0", "", "Talos v1.11.0 is not a version of which this recast can make a cluster"},
		"a Talos of the future": {"v1.99.0", "", "", "Talos v1.99.0 is not a version"},
		"no Talos":              {"newest", "", "", "Talos newest is not a version"},
	} {
		got, err := KubernetesFor(tc.talos, tc.wanted)
		if got != tc.want || (err != nil) != (tc.err != "") || !strings.Contains(fmt.Sprint(err), tc.err) || err != nil && fault.KindOf(err) != fault.Config {
			t.Errorf("%s: %q, %v; want %q, %q", name, got, err, tc.want, tc.err)
		}
	}
}

// mode is a machine that is no container, as nocloud and metal are.
type mode struct{}

func (mode) String() string        { return "nocloud" }
func (mode) RequiresInstall() bool { return false }
func (mode) InContainer() bool     { return false }

// TestNewSecrets: configurations that are rendered of new secrets are valid in Talos' eyes, with a patch
// for an address that the control planes share.
func TestNewSecrets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	vip := filepath.Join(dir, "vip.yaml")
	if err := os.WriteFile(vip, []byte("machine:\n  network:\n    interfaces:\n      - deviceSelector: {physical: true}\n        vip: {ip: 10.0.0.10}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, talos := range []string{"v1.12.0", "v1.13.9", NewestTalos()} {
		text, err := NewSecrets(talos)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, talos+".yaml")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := New(Options{Place: "recast.yaml", Render: &Render{
			Cluster: "home", Endpoint: "https://10.0.0.10:6443", Secrets: file, Talos: talos, Kubernetes: "v1.35.4", Installer: "ghcr.io/siderolabs/installer:" + talos,
			ControlPlanes: []string{"cp1"}, OfControls: []string{vip},
		}})
		if err != nil {
			t.Fatal(err)
		}
		for _, node := range []string{"cp1", "wk1"} {
			text, _, err := s.Config(t.Context(), node)
			if err != nil {
				t.Fatal(talos, node, err)
			}
			cfg, err := configloader.NewFromBytes(text)
			if err != nil {
				t.Fatal(talos, node, err)
			}
			if warnings, err := cfg.ValidateAsClient(mode{}); err != nil {
				t.Errorf("%s of Talos %s: %v; %q", node, talos, err, warnings)
			}
			if got := strings.Contains(string(text), "ip: 10.0.0.10"); got != (node == "cp1") {
				t.Errorf("%s of Talos %s has the shared address: %t", node, talos, got)
			}
		}
	}
}

// TestProtect has programs in the places of sops and age.
func TestProtect(t *testing.T) {
	const (
		plain = "secrets:\n    bootstraptoken: planted.0123456789\n"
		sops  = `cat >/dev/null; printf 'secrets: ENC[AES256_GCM,data:b,type:str]\nsops:\n    mac: ENC[AES256_GCM,data:y,type:str]\n'`
		age   = `[ "$*" = "--encrypt --armor --recipient age1a --recipient age1b" ] || exit 9; grep -q planted && printf -- '-----BEGIN AGE ENCRYPTED FILE-----\nx\n'`
		all   = "creation_rules:\n  - age: age1a\n"
	)
	for name, tc := range map[string]struct {
		rules, above string // .sops.yaml of the directory, and of the one above
		recipients   []string
		sops, age    string // scripts; "": there is none
		by, err      string
	}{
		"nothing says so":       {sops: sops},
		"a rule for all":        {rules: all, sops: sops, by: "sops"},
		"a rule above":          {above: "creation_rules:\n  - {path_regex: '^wt/secrets\\.yaml$', age: age1a}\n", sops: sops, by: "sops"},
		"a rule for others":     {rules: "creation_rules:\n  - {path_regex: machine/.*, age: age1a}\n", sops: sops},
		"the nearest file":      {rules: "destination_rules: []\n", above: all, sops: sops},
		"a rule, and no sops":   {rules: all, err: "there is no sops in PATH"},
		"rules that are none":   {rules: "creation_rules: all\n", err: ".sops.yaml: "},
		"a pattern that is not": {rules: "creation_rules:\n  - {path_regex: '*'}\n", err: ".sops.yaml: "},
		"age":                   {rules: all, recipients: []string{"age1a", "age1b"}, age: age, by: "age"},
		"age refuses":           {recipients: []string{"age1a"}, age: `echo "malformed recipient" >&2; exit 1`, err: "age: exit status 1: malformed recipient"},
		"age writes plaintext":  {recipients: []string{"age1a"}, age: "cat", err: "age wrote something else"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			top := t.TempDir()
			w.options.Base = filepath.Join(top, "wt")
			if err := os.Mkdir(w.options.Base, 0o700); err != nil {
				t.Fatal(err)
			}
			for dir, rules := range map[string]string{w.options.Base: tc.rules, top: tc.above} {
				if rules != "" {
					if err := os.WriteFile(filepath.Join(dir, ".sops.yaml"), []byte(rules), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			for program, script := range map[string]string{"sops": tc.sops, "age": tc.age} {
				if script != "" {
					w.program(program, script)
				}
			}
			text, by, err := w.options.Protect(t.Context(), filepath.Join(w.options.Base, "secrets.yaml"), tc.recipients, cluster.Secret(plain))
			switch {
			case tc.err != "":
				if err == nil || !strings.Contains(err.Error(), tc.err) || text != nil || fault.KindOf(err) == fault.Failed {
					t.Errorf("%q, %v; want %q", text, err, tc.err)
				}
			case err != nil || by != tc.by || encryption(text) != tc.by || tc.by == "" && string(text) != plain:
				t.Errorf("%q by %q, %v", text, by, err)
			}
		})
	}
}

// TestAge encrypts by the real age, and reads it back as a configuration's secrets are read.
func TestAge(t *testing.T) {
	if _, err := exec.LookPath("age-keygen"); err != nil {
		t.Skip("needs age")
	}
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys.txt")
	said, err := exec.CommandContext(t.Context(), "age-keygen", "-o", keys).CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	_, recipient, _ := strings.Cut(strings.TrimSpace(string(said)), "Public key: ")
	o := Options{Base: dir, Env: append(os.Environ(), "SOPS_AGE_KEY_FILE="+keys), Dir: dir, File: func(node string) string { return node + ".yaml" }}
	text, by, err := o.Protect(t.Context(), filepath.Join(dir, "wk1.yaml"), []string{recipient}, cluster.Secret("token: planted\n"))
	if err != nil || by != "age" {
		t.Fatal(by, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "wk1.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if back, _, err := s.Config(t.Context(), "wk1"); err != nil || string(back) != "token: planted\n" {
		t.Errorf("%q, %v", back, err)
	}
}
