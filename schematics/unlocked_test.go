package schematics

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

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
		s, err := Unlocked(name, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(plain, s.Canonical()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if _, err := Unlocked("newer", []byte("customization: {}\nfuture: 1\n")); err == nil {
		t.Error("fields unknown to this recast were dropped")
	}
}

func TestGuess(t *testing.T) {
	t.Parallel()
	official := []OfficialExtension{{Name: "siderolabs/iscsi-tools"}, {Name: "siderolabs/qemu-guest-agent"}}
	s, unknown, err := Guess("wk1", []string{"frr", "iscsi-tools"}, official)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"siderolabs/iscsi-tools"}, s.Extensions()); diff != "" {
		t.Errorf("extensions (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"frr"}, unknown); diff != "" {
		t.Errorf("unknown (-want +got):\n%s", diff)
	}
	if s, _, err := Guess("cp1", nil, official); err != nil || s.Canonical() != "customization: {}\n" {
		t.Errorf("of no extension it is %q, %v", s.Canonical(), err)
	}
}
