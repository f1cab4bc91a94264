package schematics

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSecrets(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"extraKernelArgs: [console=ttyS0, net.ifnames=0, talos.platform=nocloud]":                                            "",
		"extraKernelArgs: ['talos.config=https://x.example/c?uuid=${uuid}&mac=${mac}&h=']":                                   "",
		"extraKernelArgs: [talos.config=none, 'siderolink.api=grpc://omni.example:8090']":                                    "",
		"extraKernelArgs: ['talos.config.oauth.token_url=https://x.example/token', 'talos.environment=http_proxy=http://p']": "",
		"meta: [{key: 10, value: 'links: [{name: wg0, wireguard: {listenPort: 1}}]'}]":                                       "",
		"embeddedMachineConfiguration: 'version: v1alpha1'":                                                                  "the machine configuration that it embeds",
		"extraKernelArgs: ['siderolink.api=grpc://omni.example:8090?jointoken=w7uVuW3zbVKIYQuz']":                            "the kernel argument siderolink.api",
		"extraKernelArgs: ['quiet siderolink.api=https://o?a=b&jointoken=x \"siderolink.api=https://o?jointoken=x\"']":       "the kernel argument siderolink.api",
		"extraKernelArgs: [talos.config.inline=KLUv, -talos.config.early=KLUv]":                                              "the kernel argument talos.config.early, the kernel argument talos.config.inline",
		"extraKernelArgs: ['talos.config=https://me:word@x.example/c']":                                                      "the kernel argument talos.config",
		"extraKernelArgs: ['talos.config=https://x.example/c?sig=0a1b']":                                                     "the kernel argument talos.config",
		"extraKernelArgs: ['talos.config=:%zz']":                                                                             "the kernel argument talos.config",
		"extraKernelArgs: [talos.config.oauth.client_secret=word]":                                                           "the kernel argument talos.config.oauth.client_secret",
		"extraKernelArgs: ['talos.environment=http_proxy=http://me:word@p']":                                                 "the kernel argument talos.environment",
		"meta: [{key: 10, value: 'links: [{name: wg0, wireguard: {privateKey: 0a1b}}]'}]":                                    "the META value 0xa",
	} {
		s, err := Parse("test", []byte("customization: {"+text+"}"))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if diff := cmp.Diff(want, strings.Join(s.Secrets(), ", ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}

// TestWriteLockWithSecrets: a schematic is in the lock with everything that it holds.
func TestWriteLockWithSecrets(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "recast.lock")
	for _, c := range []struct {
		args   string
		mode   os.FileMode
		header string
	}{
		{"net.ifnames=0", 0o644, lockHeader},
		{"siderolink.api=https://o.example?jointoken=word", 0o600, secretHeader},
		{"quiet", 0o644, lockHeader},
	} {
		l := resolve(t, request(map[string]string{"default": agent, "other": "customization: {extraKernelArgs: ['" + c.args + "']}\n"}), catalog())
		if err := WriteLock(path, l); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != c.mode || !strings.HasPrefix(string(text), c.header) {
			t.Errorf("with %s it has mode %v and begins\n%.100s", c.args, info.Mode(), text)
		}
		if got, err := ReadLock(path); err != nil || got.Checksum != l.Checksum {
			t.Errorf("with %s it is not read back: %v", c.args, err)
		}
	}
}
