package schematics

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/siderolabs/image-factory/pkg/schematic"
)

// examples are the schematics to start from, which the example of recast.yaml names.
var examples = os.DirFS("../testdata/schematics")

// TestExampleIDs compares our IDs with an Image Factory's for the same file.
func TestExampleIDs(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"empty.yaml":            "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba",
		"qemu-guest-agent.yaml": "ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515",
		"storage.yaml":          "53513e54bb39202f35694412577a6bc53d484744d35a126e5d42ef34785c0d83",
		"kernel-args.yaml":      "bdf2ed8dac6e2fe88689913bdd5b1c8cfbdca5220440eea17a549ce09a276342",
		"quoting.yaml":          "4479b58b653744435fe973f716246b61dcf2bfe50e1acfeae367235f6bee15b0",
		"meta.yaml":             "1edf8e2622732e5e957b34340b7c0fd4d349ad4103fea66d48f871a9b2aa2535",
		"overlay.yaml":          "43038dc8c417c97c33365f2fab10d657121cbe087320f9b78e16a1072b35cd28",
		"secureboot.yaml":       "39de789a4d6ae4c93ef7993ba395266b45058ca17647061308f77856f0675259",
	}
	got := map[string]string{}
	files := must.Get(fs.Glob(examples, "*.yaml"))(t)
	for _, file := range files {
		data := must.Get(fs.ReadFile(examples, file))(t)
		s := must.Get(Parse(file, data))(t)
		got[file] = s.ID()
		must.Equal(t, file+": a factory's ID, posted unchanged", s.ID(), serverID(t, data))
		must.Equal(t, file, s.ID(), serverID(t, []byte(s.Canonical())))
	}
	must.Equal(t, "IDs", want, got)
}

func serverID(t *testing.T, posted []byte) string {
	t.Helper()
	doc := must.Get(schematic.Unmarshal(posted))(t)
	return must.Get(doc.ID())(t)
}

// TestPublishedID is an ID of factory.talos.dev quoted in the documentation of Longhorn and others.
func TestPublishedID(t *testing.T) {
	t.Parallel()
	s := must.Get(Parse("s.yaml", []byte(
		"customization: {systemExtensions: {officialExtensions: [siderolabs/iscsi-tools, siderolabs/util-linux-tools]}}")))(t)
	if want := "613e1592b2da41ae5e265e8789429f22e121aab91cb4deb6bc3c0b6262961245"; s.ID() != want {
		t.Errorf("ID = %s, want %s", s.ID(), want)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	type row struct {
		text string
		want string
		hint string
	}
	must.Each(t, map[string]row{
		"empty":         {"", "s.yaml: the file is empty", `an image without any customization is written "customization: {}"`},
		"only comments": {"# nothing\n", "s.yaml: the file is empty", `an image without any customization is written "customization: {}"`},
		"unknown keys": {
			"customization: {}\nfoo: 1\n\nbar: 2\n",
			"s.yaml:2:1: unknown key \"foo\"\ns.yaml:4:1: unknown key \"bar\"", "",
		},
		"unknown key below": {"customization:\n  extraKernelArg: [a]\n", `s.yaml:2:3: unknown key "extraKernelArg"`, ""},
		"wrong type":        {"customization:\n  meta: [{key: 300, value: x}]\n", "s.yaml:2:16: cannot construct !!int `300` into uint8", ""},
		"a list":            {"[]", "s.yaml:1:1: cannot construct a list as a schematic", ""},
		"not YAML":          {"customization:\n  extraKernelArgs:\n - a\n  - b\n", "s.yaml:3:2: did not find expected key", ""},
		"a key twice":       {"customization: {}\ncustomization: {}\n", `s.yaml:2:1: mapping key "customization" already defined at line 1`, ""},
		"two documents":     {"customization: {}\n---\ncustomization: {}\n", "s.yaml:2: only one YAML document is allowed in this file", ""},
		"owner":             {"customization: {}\nowner: me\n", "s.yaml:2:8: owner field is only supported in Enterprise edition", ""},
		"bootloader":        {"customization:\n  bootloader: lilo\n", "s.yaml:2:15: lilo does not belong to BootloaderKind values", ""},
	}, func(t *testing.T, tc row) {
		_, err := Parse("s.yaml", []byte(tc.text))
		if err == nil {
			t.Fatal("no error")
		}
		must.Equal(t, "error", tc.want, err.Error())
		must.Equal(t, "kind", fault.Config, fault.KindOf(err))
		must.Equal(t, "hint", tc.hint, strings.Join(fault.Hints(err), "; "))
	})
}

func TestWithLock(t *testing.T) {
	t.Parallel()
	must.Each(t, map[string]string{
		"none":  "customization: {}\n",
		"some":  "customization:\n  extraKernelArgs: [console=ttyS0]\n",
		"other": "overlay: {image: a/b, name: c, options: {x: 1, y: [no, 1.10, 2020-01-01]}}\ncustomization: {}\n",
	}, func(t *testing.T, text string) {
		s := must.Get(Parse("s.yaml", []byte(text)))(t)
		locked := must.Get(s.withLock("sha256-00"))(t)
		must.Equal(t, "lock hash of the schematic itself", "", s.lockHash())
		must.Equal(t, "lock hash", "sha256-00", locked.lockHash())
		wantArgs := append(slices.Clone(s.doc.Customization.ExtraKernelArgs), "recast.lock=sha256-00")
		must.Equal(t, "kernel arguments", wantArgs, Locked{Schematic: locked.Canonical()}.KernelArgs())
		if s.ID() == locked.ID() {
			t.Error("the lock hash does not change the ID")
		}
		must.Equal(t, "without the lock hash the schematic differs", s.Canonical(), locked.withoutLock())
	})
}

func FuzzParse(f *testing.F) {
	err := fs.WalkDir(examples, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(examples, path)
		f.Add(string(data))
		return err
	})
	must.Do(f, err)
	f.Add("customization: {meta: [{key: 300, value: x}]}\n---\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse("s.yaml", []byte(text))
		if err != nil {
			if fault.KindOf(err) != fault.Config || !strings.HasPrefix(err.Error(), "s.yaml") {
				t.Fatalf("not an error of kind Config with its place: %v", err)
			}
			return
		}
		again, err := Parse("s.yaml", []byte(s.Canonical()))
		if err != nil {
			t.Fatalf("the canonical form can't be read: %v\n%s", err, s.Canonical())
		}
		if again.ID() != s.ID() || again.Canonical() != s.Canonical() {
			t.Fatalf("the canonical form is not stable:\n%s", s.Canonical())
		}
		locked := must.Get(s.withLock("sha256-00"))(t)
		if locked.lockHash() != "sha256-00" || locked.withoutLock() != s.Canonical() {
			t.Fatalf("the lock hash is not placed as expected:\n%s", locked.Canonical())
		}
	})
}

func TestParseAllReportsEveryFile(t *testing.T) {
	t.Parallel()
	_, err := parseAll(map[string]File{
		"a": {Path: "a.yaml", Data: []byte("x: 1\n")},
		"b": {Path: "b.yaml", Data: []byte("y: 1\n")},
	})
	want := "a.yaml:1:1: unknown key \"x\"\nb.yaml:1:1: unknown key \"y\""
	must.Equal(t, "error", want, fmt.Sprint(err))
	must.Equal(t, "kind", fault.Config, fault.KindOf(err))
}

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
		must.Equal(t, text, want, strings.Join(s.Secrets(), ", "))
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
		must.Do(t, WriteLock(path, l))
		info := must.Get(os.Stat(path))(t)
		text := must.Get(os.ReadFile(path))(t)
		if info.Mode() != c.mode || !strings.HasPrefix(string(text), c.header) {
			t.Errorf("with %s it has mode %v and begins\n%.100s", c.args, info.Mode(), text)
		}
		must.Equal(t, "read back", l.Checksum, must.Get(ReadLock(path))(t).Checksum)
	}
}

func TestUnlocked(t *testing.T) {
	t.Parallel()
	const plain = `customization:
    extraKernelArgs:
        - net.ifnames=0
    systemExtensions:
        officialExtensions:
            - siderolabs/iscsi-tools
`
	const locked = `customization:
    extraKernelArgs:
        - net.ifnames=0
        - recast.lock=sha256-aa
    systemExtensions:
        officialExtensions:
            - siderolabs/iscsi-tools
`
	for name, text := range map[string]string{"locked": locked, "as it is": plain} {
		s := must.Get(Unlocked(name, []byte(text)))(t)
		must.Equal(t, name, plain, s.Canonical())
	}
	if _, err := Unlocked("newer", []byte("customization: {}\nfuture: 1\n")); err == nil {
		t.Error("fields unknown to this recast were dropped")
	}
}

func TestGuess(t *testing.T) {
	t.Parallel()
	official := []OfficialExtension{{Name: "siderolabs/iscsi-tools"}, {Name: "siderolabs/qemu-guest-agent"}}
	s, unknown, err := Guess("wk1", []string{"frr", "iscsi-tools"}, official)
	must.Do(t, err)
	must.Equal(t, "extensions", []string{"siderolabs/iscsi-tools"}, s.Extensions())
	must.Equal(t, "unknown", []string{"frr"}, unknown)
	if s, _, err := Guess("cp1", nil, official); err != nil || s.Canonical() != "customization: {}\n" {
		t.Errorf("of no extension it is %q, %v", s.Canonical(), err)
	}
}
