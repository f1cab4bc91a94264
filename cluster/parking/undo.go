package parking

import (
	"cmp"
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

// flags renders options as flags of qm or ha-manager, in order. A setting of the remembered VM may be read from there.
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

// switchOff makes sure that nothing starts the VM. It removes a VM whose creation was interrupted: such a VM is
// locked and names no volume yet. A command that must not fail comes last in its line: sh -e continues after a
// failure of any other.
func (u *undo) switchOff() {
	id := u.vm()
	if !u.rec.Strategy.SwapsInVM() {
		u.line(fmt.Sprintf("has %d 'lock: create'", id), fmt.Sprintf("lacks %d '.*vm-'", id), fmt.Sprintf("qm unlock %d", id), fmt.Sprintf("qm destroy %d", id))
	}
	if uuid := (cluster.Disk{Options: strings.Split(u.mem.VM.Config["smbios1"], ",")}).Option("uuid"); uuid != "" { // another VM may have taken the VMID
		u.line(fmt.Sprintf("has %d", id), fmt.Sprintf("lacks %d %s", id, words.Quote("smbios1:.*"+uuid)), "exit 1")
	}
	if u.mem.HA != nil { // the HA manager would start the VM again until its next round
		u.line(fmt.Sprintf("ha %d", id), fmt.Sprintf("ha-manager remove vm:%d --purge 0", id))
		u.line("sleep 30")
	}
	u.line(fmt.Sprintf("has %d", id), fmt.Sprintf("qm shutdown %d --timeout 120 --forceStop 1", id))
	u.line(fmt.Sprintf("has %d", id), fmt.Sprintf("qm set %d --onboot 0 --protection 0", id))
}

// make creates the VM if it no longer exists, on the host of the parking VM. A VM that a run created again already
// has all of this.
func (u *undo) make() {
	if u.rec.Strategy.SwapsInVM() {
		return
	}
	config := cluster.OldSettings(u.mem.VM)
	for _, key := range []string{"boot", "description", "onboot", "protection", "tags", "sshkeys", "cipassword"} {
		delete(config, key) // set afterwards, or unknown
	}
	id := u.vm()
	create := fmt.Sprintf("qm create %d", id)
	if u.tight {
		create = "new"
		for _, key := range slices.SortedFunc(maps.Keys(config), cluster.CompareKeys) {
			if _, remembered := u.mem.VM.Config[key]; remembered && !cluster.IsDiskKey(key) {
				u.read = append(u.read, key)
				delete(config, key)
			}
		}
	}
	u.line(fmt.Sprintf("has %d", u.rec.Parking), fmt.Sprintf("lacks %d", id), create+u.flags(config))
	if u.mem.Firewall != "" {
		give := fmt.Sprintf("cp /etc/pve/firewall/%d.fw /etc/pve/firewall/%d.fw", u.rec.Parking, id)
		u.line(fmt.Sprintf("test ! -e /etc/pve/firewall/%d.fw", id), give)
		u.line(fmt.Sprintf("has %d description:.*%s", id, u.rec.Run), give) // an interrupted run may have copied only a part
	}
	if _, ok := u.mem.VM.Config["sshkeys"]; ok {
		// qm takes a file name for these keys and encodes the file's content (qm.pm, param_mapping).
		u.line(fmt.Sprintf("lacks %d sshkeys:", id), fmt.Sprintf("pvesh set /nodes/localhost/qemu/%d/config --sshkeys %s", id, u.value("sshkeys")))
	}
}

// moveBack returns every disk but the system disk. Detached volumes go first: removing a drive from
// the VM makes an unusedN of it.
func (u *undo) moveBack() {
	in := u.rec.Intent
	detached := in != nil && strings.HasPrefix(in.Key, "unused")
	if detached {
		u.finishMove(*in)
	}
	for _, d := range u.rec.Disks {
		if strings.HasPrefix(d.Key, "unused") {
			u.move(d)
		}
	}
	if in != nil && !detached {
		u.finishMove(*in)
	}
	for _, d := range u.rec.Disks {
		switch {
		case d.System, strings.HasPrefix(d.Key, "unused"):
		case d.Holder != 0:
			u.line(fmt.Sprintf("lacks %d %s:", u.vm(), d.Key), fmt.Sprintf("qm set %d --%s %s", u.vm(), d.Key, words.Quote(cluster.JoinOptions(d.Volid, d.Options))))
		default:
			u.move(d)
		}
	}
}

func (u *undo) move(d ParkedDisk) {
	if u.tight {
		u.line(strings.TrimSuffix(fmt.Sprintf("back %s %s", d.ParkKey, d.Key), " "+d.ParkKey))
		return
	}
	u.line(fmt.Sprintf("has %d %s:", u.rec.Parking, d.ParkKey),
		fmt.Sprintf("qm disk move %d %s --target-vmid %d --target-disk %s", u.rec.Parking, d.ParkKey, u.vm(), d.Key))
}

// finishMove finishes the last hand-over if Proxmox has renamed the volume but not written both configurations: it
// drops the old name from the source and attaches the volume to the target.
func (u *undo) finishMove(in Intent) {
	drop := func(key, line string) {
		parts := []string{fmt.Sprintf("has %d %s", in.From, words.Quote(key+": "+in.Volid+`\b`)), "gone " + words.Quote(in.Volid)}
		if in.From == u.rec.Parking {
			parts = append(parts, fmt.Sprintf("qm set %d --protection 0", in.From))
		}
		u.line(append(parts, fmt.Sprintf("qm set %d --delete %s", in.From, line))...)
	}
	drop(in.Key, in.Key)
	storage, _, _ := strings.Cut(in.Volid, ":")
	lost := fmt.Sprintf("lost %d %s", in.To, storage)
	if len(in.Unnamed) > 0 {
		lost += " " + words.Quote(strings.Join(in.Unnamed, "\n"))
	}
	cut := []string{fmt.Sprintf("lacks %d %s:", in.From, in.Key), fmt.Sprintf("lacks %d %s:", in.To, in.ToKey), lost}
	if strings.HasPrefix(in.ToKey, "unused") {
		u.line(append(cut, fmt.Sprintf("qm disk rescan --vmid %d", in.To))...)
		return
	}
	drop("unused[0-9]*", fmt.Sprintf(`"$(key %d %s)"`, in.From, words.Quote(in.Volid)))
	u.use("key")
	options := optionSuffix(in.Options)
	if key := cmp.Or(map[cluster.VMID]string{u.vm(): in.ToKey}[in.To], in.Key); u.tight && in.ToKey != u.rec.SpareKey && in.Key != u.rec.SpareKey && u.mem.VM.Config[key] != "" && u.rec.Strategy.System() != cluster.SystemKept {
		u.use("old")
		options = `,"$(old ` + key + ` | cut -d, -f2-)"` // without backup=0, even if it was on its way to be parked
	}
	u.line(append(cut, fmt.Sprintf(`qm set %d --%s "$(%s)"%s`, in.To, in.ToKey, lost, options))...)
}

func optionSuffix(options string) string {
	if options == "" {
		return ""
	}
	return words.Quote("," + options)
}

// restoreSystem removes the system disk of the exchange without freeing it, and returns the old system disk.
func (u *undo) restoreSystem() {
	id := u.vm()
	for _, d := range u.rec.Disks {
		if !d.System {
			continue
		}
		if k := u.rec.Restore; u.rec.Strategy.System() == cluster.SystemKept && k != nil {
			u.line(fmt.Sprintf("lacks %d %s:", u.rec.Parking, k.Key), fmt.Sprintf("has %d %s:", id, d.Key),
				fmt.Sprintf("qm disk move %d %s --target-vmid %d --target-disk %s", id, d.Key, u.rec.Parking, k.Key),
				fmt.Sprintf(`qm set %d --%s "$(vol %d %s)"%s`, u.rec.Parking, k.Key, u.rec.Parking, k.Key,
					optionSuffix(strings.Join(ParkedOptions(ParkedDisk{Key: d.Key, Options: k.Options}), ","))))
			u.use("vol")
		} else {
			u.parkNew(d.Key)
		}
		u.move(d)
	}
}

// parkNew moves the new system disk of the exchange to the reserved key of the parking VM. If that key is taken, or the
// Notes have no room for that command, the disk becomes an unusedN of the VM. Nothing frees it.
func (u *undo) parkNew(key string) {
	ours := fmt.Sprintf("has %d %s", u.vm(), words.Quote(key+":.*serial="+u.mem.DiskSerial))
	move := fmt.Sprintf("qm disk move %d %s --target-vmid %d --target-disk %s", u.vm(), key, u.rec.Parking, u.rec.SpareKey)
	switch {
	case u.rec.SpareKey == "" || u.leaves:
	case u.tight:
		u.line(ours, move)
		return
	default:
		u.line(ours, fmt.Sprintf("lacks %d %s:", u.rec.Parking, u.rec.SpareKey), move)
	}
	u.line(ours, fmt.Sprintf("qm set %d --delete %s", u.vm(), key))
}

// setUp restores the drives' options that parking changed, then the settings that an exchange changes. Drives come
// before the boot order: Proxmox appends a CD drive that the order lacks (Qemu.pm, update_vm_api).
func (u *undo) setUp() {
	id := u.vm()
	u.setOptions()
	u.setCDs()
	settings, del := map[string]string{}, []string{}
	for _, key := range append([]string{"boot", "description"}, ChangedSettings(u.mem.VM, u.mem.Blank)...) {
		if value := strings.TrimRight(u.mem.VM.Config[key], "\n"); value != "" {
			settings[key] = value
		} else {
			del = append(del, key)
		}
	}
	set := fmt.Sprintf("qm set %d%s", id, u.flags(settings))
	if len(del) > 0 {
		set += " --delete " + strings.Join(del, ",")
	}
	u.line(set)
	u.line(fmt.Sprintf("qm start %d", id))
	if ha := u.mem.HA; ha != nil {
		options := map[string]string{"state": cmp.Or(ha.State, "started")}
		maps.Copy(options, ha.Settings)
		u.line(fmt.Sprintf("ha-manager add vm:%d%s", id, u.flags(options)))
	}
	u.out = append(u.out, fmt.Sprintf("# unusedN before: %s", words.OrNone(strings.Join(unusedKeys(u.mem.VM), ", "))))
}

func (u *undo) setOptions() {
	spelled, keys := "", ""
	for _, d := range u.rec.Disks {
		if d.Holder == 0 && !cluster.SameOptions(cluster.SplitOptions(d.Options), ParkedOptions(d)) {
			spelled += fmt.Sprintf(` --%s "$(vol %d %s)"%s`, d.Key, u.vm(), d.Key, optionSuffix(d.Options))
			keys += " " + d.Key
		}
	}
	switch {
	case spelled == "":
	case u.tight:
		u.line("same" + keys)
	default:
		u.use("vol")
		u.line(fmt.Sprintf("qm set %d%s", u.vm(), spelled))
	}
}

func (u *undo) setCDs() {
	disks, err := u.mem.VM.Disks()
	if err != nil {
		return // such a VM was refused when it was recorded
	}
	id := u.vm()
	cds := map[string]string{}
	for _, d := range disks {
		if d.CDROM && !d.CloudInit() {
			cds[d.Key] = cluster.WithoutOption(d, "size").Value()
		}
	}
	if len(cds) > 0 {
		u.line(fmt.Sprintf("qm set %d%s", id, u.flags(cds)))
	}
	if key := cluster.CDKey(u.mem.VM.Config, disks); u.rec.Strategy.System() != cluster.SystemKept && cds[key] == "" {
		u.line(fmt.Sprintf("has %d %s:", id, key), fmt.Sprintf("qm set %d --delete %s", id, key))
	}
}

func unusedKeys(vm cluster.VM) []string {
	unused := func(key string) bool { return cluster.IsDiskKey(key) && strings.HasPrefix(key, "unused") }
	return cluster.Where(slices.SortedFunc(maps.Keys(vm.Config), cluster.CompareKeys), unused)
}
