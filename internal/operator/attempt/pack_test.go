package attempt

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/recast-sh/recast/api/v1alpha1"
)

// TestPackSecrets: private keys do not get into a ConfigMap.
func TestPackSecrets(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		text   string
		secret bool
	}{
		"PEM":               {"-----BEGIN PRIVATE KEY-----\nabc", true},
		"PEM of a kind":     {"key: |\n  -----BEGIN ED25519 PRIVATE KEY-----\n", true},
		"age":               {"# public key: age1\nAGE-SECRET-KEY-1ABC\n", true},
		"machine":           {"machine:\n  ca:\n    crt: LS0tLS1CRUdJTiBD\n    key: LS0tLS1CRUdJTiBF\n", true},
		"quoted":            {"ca: {crt: \"\", key: \"LS0tLS1CRUdJTiBF\"}", true},
		"JSON":              {`{"crt":"","key":"LS0tLS1CRUdJTiBF"}`, true},
		"folded":            {"key: >-\n    LS0tLS1CRUdJTiBF\n", true},
		"certificate":       {"crt: LS0tLS1CRUdJTiBD\nca: |\n  -----BEGIN CERTIFICATE-----\n", false},
		"encrypted by sops": {"key: ENC[AES256_GCM,data:LS0tLS1CRUdJTiBF]\nenc: |\n  -----BEGIN AGE ENCRYPTED FILE-----\n", false},
		"public key":        {"-----BEGIN PUBLIC KEY-----\n", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, filepath.Join(dir, "machine", "cp1.yaml"), c.text)
			_, err := pack(dir, nil)
			if (err != nil) != c.secret {
				t.Fatalf("%v", err)
			}
			if c.secret && (exitOf(err) != ExitConfig || !strings.HasPrefix(err.Error(), "machine/cp1.yaml has a private key") || !strings.HasSuffix(err.Error(), "put it into a Secret and name that in spec.secrets.files")) {
				t.Errorf("exit code %d: %v", exitOf(err), err)
			}
			if _, err := pack(dir, []v1alpha1.SecretFile{{Path: "machine/cp1.yaml"}}); err != nil {
				t.Errorf("what is in a Secret is not packed: %v", err)
			}
		})
	}
}

// TestArrange: snapshots go to their volume, and a check finds a private key before a plan does.
func TestArrange(t *testing.T) {
	t.Parallel()
	a, _ := testAttempt(t, Check, interceptor.Funcs{})
	write(t, filepath.Join(a.Recast.Dir, configFile), "version: 1\n")
	if err := a.arrange(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(a.Recast.Dir, configFile))
	if err != nil || !strings.Contains(string(b), "etcdSnapshot: "+BackupDir) {
		t.Errorf("etcd snapshots would go into memory: %v\n%s", err, b)
	}
	write(t, filepath.Join(a.Recast.Dir, "keys.txt"), "AGE-SECRET-KEY-1ABC")
	if err := a.arrange(); err == nil || !strings.HasPrefix(err.Error(), "keys.txt has a private key") {
		t.Errorf("%v", err)
	}
}
