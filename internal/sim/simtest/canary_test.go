package simtest

import (
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCanarySees leaks secrets on purpose: the check at the end of every story must detect
// them.
func TestCanarySees(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		leaks := lab.leaks()
		mustBe(t, leaks == nil, "leaks at the beginning: %q", leaks)
		b := lab.Talos.Secrets
		lines := strings.Split(string(b.Certs.K8s.Key), "\n")
		checked[int](lab)(0, errors.New("line 7: cannot unmarshal `"+lines[1]+"`"))
		checked[string](lab)("token: "+b.TrustdInfo.Token, nil)
		lab.Write(".recast/note", []byte("key: "+base64.StdEncoding.EncodeToString(b.Certs.OS.Key)))
		lab.Write(".recast/runs/x/config.secret", b.Certs.Etcd.Key)
		lab.Write("env", []byte(lab.Token()))
		lab.EditVM(9031, "description", lab.Token())
		must(t, os.Chmod(filepath.Join(lab.Dir, ".recast/runs/x/config.secret"), 0o644))
		want := []string{
			"what recast said has Kubernetes' CA", "what recast said has trustd's token", "VM 9031 has the Proxmox token",
			filepath.Join(lab.Dir, ".recast/note") + " has Talos' CA",
			filepath.Join(lab.Dir, ".recast/runs/x/config.secret") + " has mode -rw-r--r--",
		}
		requireSame(t, want, lab.leaks(), "leaks (-want +got)")
		lab.canary.heard.Reset()
		lab.EditVM(9031, "description", "")
		must(t, os.RemoveAll(filepath.Join(lab.Dir, ".recast/note")))
		must(t, os.RemoveAll(filepath.Join(lab.Dir, ".recast/runs/x")))
	})
}
