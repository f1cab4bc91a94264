package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const source = `package x

func (n *gate) look(a, b bool, vm VM) error {
	if a || b {
		return refuse()
	}
	if a && b {
		return nil
	}
	switch {
	case vm.Off:
		return refuse()
	case vm.Gone:
	}
	if err := n.requireRoom(vm); err != nil {
		return err
	}
	if vm, err := read(); err != nil || vm.Off {
		return err
	}
	return errors.Join(n.first(), n.requireRoom(vm))
}

var rows = map[string]row{
	"a": {on: first},
	"b": {second, words{"c"}, flag | other},
}

func other(n *gate) error {
	if n.a {
		return nil
	}
	n.asks = n.requireRoom
	return n.requireRoom(VM{})
}
`

// TestMutate: each condition of a gate lets through what it refused, and a gate's call is a mutant wherever it is.
func TestMutate(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	before := rooms
	defer func() { rooms = before }()
	rooms = []room{{".", ".", "gate.look rows"}}
	files, found, err := mutate(dir, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range found {
		got = append(got, m.String())
	}
	want := `x.go:4  gate.look  a → false
x.go:4  gate.look  b → false
x.go:7  gate.look  a → true
x.go:7  gate.look  b → true
x.go:11  gate.look  vm.Off → false
x.go:13  gate.look  vm.Gone → true
x.go:15  gate.look  n.requireRoom(vm) → nil
x.go:18  gate.look  err != nil || vm.Off → false
x.go:21  gate.look  n.first() → nil
x.go:21  gate.look  n.requireRoom(vm) → nil
x.go:25  rows of "a"  first → the next
x.go:26  rows of "b"  second → the next
x.go:26  rows of "b"  flag → missing
x.go:26  rows of "b"  other → missing
x.go:33  other  n.requireRoom → not asked
x.go:34  other  n.requireRoom(VM{}) → nil`
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("mutants:\n%s\nwant:\n%s", text, want)
	}
	text := string(files[filepath.Join(dir, "x.go")])
	for _, line := range []string{"if (!gateOff(1) && (a)) || (!gateOff(2) && (b)) {", "if (gateOff(3) || (a)) && (gateOff(4) || (b)) {", "err := gateDrop(7, n.requireRoom(vm)); err != nil {", "n.asks = gateFunc(15, n.requireRoom)", "{gateCell(12, second), words{\"c\"}, gateFlag(13, flag) | gateFlag(14, other)}"} {
		if !strings.Contains(text, line) {
			t.Errorf("no %q in\n%s", line, text)
		}
	}
	rooms[0].gates = "gate.gone"
	if _, _, err := mutate(dir, 0, 1); err == nil || !strings.Contains(err.Error(), "has no gate.gone") {
		t.Errorf("a gate that is not there: %v", err)
	}
}
