package parking

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/words"
)

// undo renders the commands that restore a node's VM without recast, for a root shell on the host of the VM and its
// parking VM. Each line checks with qm config whether there is anything to do, so all lines can be run from every
// state in which an exchange may be interrupted, and run again. recast itself never reads the lines.
// docs/notes/proxmox.md explains them.
type undo struct {
	rec Record
	mem Memory
	undoForm
	out  []string
	used map[string]bool // the functions that the lines call
	read []string        // the settings that new reads
}

// undoForm is how much the lines spell out. They read the rest from the packed memory, which has everything.
type undoForm struct {
	long   int  // longer values are read from the memory
	tight  bool // so are the options of drives; repeated commands become functions
	leaves bool // the new system disk stays with the VM, as an unusedN
}

var undoForms = []undoForm{{long: cluster.MaxDescription}, {long: 60}, {long: 16, tight: true}, {long: 16, tight: true, leaves: true}}

// shellFunctions are the functions that the lines call, in the order of their definition. lost lists the volumes of
// one storage that no configuration names, without writing anything (qm.pm, rescan); its last argument lists, one
// per line, the volumes that already had no name. old unpacks the record. The functions need bash or dash and what
// every Proxmox host has.
var shellFunctions = []struct{ name, body string }{
	{"has", `has() { qm config $1 2>/dev/null | grep -q "^$2"; }`},
	{"lacks", `lacks() { ! has "$@"; }`},
	{"vol", `vol() { qm config $1 | sed -n "s/^$2: \([^,]*\).*/\1/p"; }`},
	{"lost", `lost() { qm disk rescan --vmid $1 --dryrun 1 | sed -n "s/.*add unref[^']*'\($2:[^']*\).*/\1/p" | grep -vxF "$3"; }`},
	{"gone", `gone() { pvesm list ${1%%:*} | awk '$1==v{f=1}END{exit f||!NR}' v="$1"; }`},
	{"key", `key() { qm config $1 | sed -n "s|^\(unused[0-9]*\): $2\$|\1|p"; }`},
	{"ha", `ha() { ha-manager config | grep -qx "vm:$1"; }`},
	{"old", `old() { qm config PARKING | perl -MJSON -MMIME::Base64=decode_base64url -MCompress::Zlib=memGunzip -ne 'BEGIN{$k=pop}/^desc/||next;s/%(..)/chr hex $1/ge;/.*"memory":"([^"]+)/s;$_=decode_json(memGunzip decode_base64url $1)->{VM}{Config}{$k};utf8::encode $_;print' $1; }`},
	{"new", `new() { for k in SETTINGS; do set -- "$@" --$k "$(old $k)"; done; qm create VMID "$@"; }`},
	{"back", `back() { lacks PARKING $1: || qm disk move PARKING $1 --target-vmid VMID --target-disk ${2-$1}; }`},
	{"same", `same() { for k; do set -- "$@" --$k "$(vol VMID $k),$(old $k | cut -d, -f2-)"; shift; done; qm set VMID "$@"; }`},
}

// wayBack returns the commands in an open record's description with which an administrator undoes it; "" if there
// are none. It returns at most room bytes.
func (r Record) wayBack(room int) string {
	if !r.Open || r.Parking == 0 || r.Memory == "" || r.Strategy.ParksNothing() {
		return ""
	}
	mem, err := UnpackMemory(r.Memory)
	if err != nil {
		return "" // someone edited the memory; the code that needs it says so
	}
	for _, form := range undoForms {
		u := undo{rec: r, mem: mem, undoForm: form, used: map[string]bool{}}
		if text := u.text(); len(text) <= room {
			return text
		}
	}
	if len(noRoom) > room {
		return ""
	}
	return noRoom
}

const noRoom = "The lines that undo this without recast have no room here: see docs/notes/proxmox.md, Undo by hand.\n\n"

func (u *undo) text() string {
	u.switchOff()
	u.make()
	u.moveBack()
	u.restoreSystem()
	u.setUp()
	var b strings.Builder
	fmt.Fprintf(&b, "Without recast, as root on the host of both VMs (see docs/notes/proxmox.md, Undo by hand), these lines, in this order, give VM %d its old self back:\n\n```sh\n", u.vm())
	ids := strings.NewReplacer("PARKING", fmt.Sprint(u.rec.Parking), "VMID", fmt.Sprint(u.vm()), "SETTINGS", strings.Join(u.read, " "))
	for _, f := range shellFunctions {
		if u.used[f.name] {
			b.WriteString(ids.Replace(f.body) + "\n")
		}
	}
	b.WriteString(strings.Join(u.out, "\n") + "\n```\n\n")
	return b.String()
}

func (u *undo) vm() cluster.VMID { return u.mem.VM.ID }

// line adds a command after conditions such as "has 9011 scsi1:". The caller quotes what is in
// conditions and arguments.
func (u *undo) line(parts ...string) {
	for _, p := range parts {
		name, _, _ := strings.Cut(p, " ")
		u.use(name)
	}
	u.out = append(u.out, strings.Join(parts, " && "))
}

// use notes that a line calls a function, and which functions that calls.
func (u *undo) use(name string) {
	u.used[name] = true
	switch name {
	case "lacks":
		u.use("has")
	case "back":
		u.use("lacks")
	case "new":
		u.use("old")
	case "same":
		u.use("vol")
		u.use("old")
	}
}

// flags renders settings of the remembered VM as flags of qm, in order.
func (u *undo) flags(settings map[string]string) string {
	var b strings.Builder
	for _, key := range slices.SortedFunc(maps.Keys(settings), cluster.CompareKeys) {
		value := words.Quote(settings[key])
		if _, remembered := u.mem.VM.Config[key]; remembered && !cluster.IsDiskKey(key) {
			value = u.value(key)
		}
		b.WriteString(" --" + key + " " + value)
	}
	return b.String()
}

// value renders a setting of the remembered VM: literally or, if that is too long, as a command that reads the
// setting from the record.
func (u *undo) value(key string) string {
	quoted := words.Quote(strings.TrimRight(u.mem.VM.Config[key], "\n"))
	if len(quoted) <= u.long {
		return quoted
	}
	u.use("old")
	return `"$(old ` + key + `)"`
}

func plainFlags(options map[string]string) string {
	var b strings.Builder
	for _, key := range slices.SortedFunc(maps.Keys(options), cluster.CompareKeys) {
		b.WriteString(" --" + key + " " + words.Quote(options[key]))
	}
	return b.String()
}
