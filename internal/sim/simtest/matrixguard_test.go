package simtest

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// matrixName is a key of a configuration that names a volume.
type matrixName struct {
	vm    int
	key   string
	volid string
}

func (n matrixName) String() string { return strconv.Itoa(n.vm) + "-" + n.key }

// names lists the keys that name each of the initial volumes now.
func (l *matrixLab) names() map[*world.Media][]matrixName {
	names := map[*world.Media][]matrixName{}
	for _, vm := range l.world.VMs() {
		for _, config := range []map[string]string{vm.Config, vm.Pending} {
			for key, value := range config {
				if !cluster.IsDiskKey(key) {
					continue
				}
				volid, _, _ := strings.Cut(value, ",")
				if media := l.world.Media(volid, vm.Host); media != nil {
					names[media] = append(names[media], matrixName{vm.ID, key, volid})
				}
			}
		}
	}
	for _, list := range names {
		slices.SortFunc(list, matrixKey)
	}
	return names
}

// lookAfter is look after a call that can have changed something, itself or by an earlier
// call's worker.
func (l *matrixLab) lookAfter(call record.Call) {
	busy := slices.ContainsFunc(l.world.Tasks(), func(t world.Task) bool { return t.Running })
	l.mu.Lock()
	was := l.busy
	l.busy = busy
	l.mu.Unlock()
	if call.Mutation || was || busy {
		l.look(call)
	}
}

// look checks what must hold after every single call.
func (l *matrixLab) look(call record.Call) {
	var problems []string
	names := l.names()
	for _, v := range l.world.Violations() {
		// A volume may lack a name for a moment, if the record says so.
		if !strings.HasSuffix(v, "no VM's configuration names its volume") {
			problems = append(problems, v)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	problems = append(problems, l.startedWithout(names)...)
	for _, d := range l.disks {
		problems = append(problems, l.lookAt(d, names[d.media])...)
	}
	for _, p := range problems {
		l.broken = append(l.broken, fmt.Sprintf("after %s %s: %s", call.Method, call.Path, p))
	}
}

// lookAt lists problems with the names of one volume; mu must be held.
func (l *matrixLab) lookAt(d matrixDisk, names []matrixName) (problems []string) {
	if d.name == "the orphan" {
		if len(names) > 0 {
			problems = append(problems, fmt.Sprintf("%s, which nobody had named, is %v", d.name, names))
		}
		return problems
	}
	var runnable, others []string
	for _, n := range names {
		if n.vm == matrixHolder && d.held {
			continue
		}
		others = append(others, n.String())
		if !l.isParking(n.vm) && !slices.Contains(runnable, strconv.Itoa(n.vm)) {
			runnable = append(runnable, strconv.Itoa(n.vm))
		}
	}
	switch {
	case len(runnable) > 1:
		problems = append(problems, fmt.Sprintf("%s is in several VMs that may run: %v", d.name, runnable))
	case len(others) > 1:
		problems = append(problems, fmt.Sprintf("%s has several names: %v", d.name, others))
	case len(names) == 0 && !l.intended(l.named[d.name]):
		problems = append(problems, fmt.Sprintf("%s, which was %s, has no name, and no record says that it is on its way", d.name, l.named[d.name]))
	case len(names) > 0:
		l.named[d.name] = names[0].volid
	}
	return problems
}

// isParking says whether recast must never start a VM.
func (l *matrixLab) isParking(id int) bool { return id >= matrixParking && id < matrixParking+100 }

// intended says whether an open record says that this very volume is being handed over.
func (l *matrixLab) intended(volid string) bool {
	for _, vm := range l.world.VMs() {
		rec, ok, err := parking.ReadRecord(cluster.VM{Config: vm.Config})
		if err == nil && ok && rec.Open && rec.Intent != nil && rec.Intent.Volid == volid {
			return true
		}
	}
	return false
}

// unfreed lists the volumes that no longer exist.
func (l *matrixLab) unfreed() (gone []string) {
	there := map[*world.Media]bool{}
	for _, storage := range []string{"data", "fast"} {
		volumes, err := l.world.Volumes(storage, matrixHost)
		must(l.t, err)
		for _, v := range volumes {
			there[l.world.Media(v.Volid, matrixHost)] = true
		}
	}
	for _, d := range l.disks {
		if !there[d.media] {
			gone = append(gone, d.name+" was freed")
		}
	}
	return gone
}

// settle waits until nothing is in progress any more, and repairs the faults around the
// exchange, as time and administrators do.
func (l *matrixLab) settle() {
	l.mu.Lock()
	mends := l.mends
	l.mends = nil
	l.mu.Unlock()
	for _, mend := range mends {
		mend()
	}
	l.world.NoMoreFailures()
	l.world.SetQuorum(true)
	l.world.SetDaemon(matrixHost, true)
	if booted := len(mends) > 0; booted {
		time.Sleep(2 * time.Minute) // of the bubble: a booting host starts the VMs with onboot=1
	}
	l.rest()
	l.switchOff()
}

func (l *matrixLab) rest() {
	for slices.ContainsFunc(l.world.Tasks(), func(t world.Task) bool { return t.Running }) {
		time.Sleep(5 * time.Second) // of the bubble
	}
}

// switchOff stops the VM if its host has started it at boot, which is fine while it has
// all its disks: an exchange needs a stopped VM.
func (l *matrixLab) switchOff() {
	vm, err := l.world.LookupVM(matrixHost, matrixVM)
	if err != nil || !vm.Running {
		return
	}
	l.look(record.Call{Method: "booting"})
	must(l.t, errOf(l.world.Stop("root@pam", matrixHost, matrixVM)))
	l.rest()
}

// startedWithout lists disks that a running VM lacks because they are parked; mu must be held.
func (l *matrixLab) startedWithout(names map[*world.Media][]matrixName) (problems []string) {
	vm, err := l.world.LookupVM(matrixHost, matrixVM)
	if err != nil || !vm.Running {
		return nil
	}
	for _, d := range l.disks {
		mine := strings.HasSuffix(d.name, fmt.Sprintf("of VM %d", matrixVM))
		if mine && d.name != fmt.Sprintf("scsi0 of VM %d", matrixVM) && slices.ContainsFunc(names[d.media], func(n matrixName) bool { return l.isParking(n.vm) }) {
			problems = append(problems, fmt.Sprintf("VM %d runs without %s, which is parked", matrixVM, d.name))
		}
	}
	if vm.Config["scsi0"] == "" {
		problems = append(problems, fmt.Sprintf("VM %d runs without a system disk", matrixVM))
	}
	return problems
}

// dump is the world as text, without what Proxmox regenerates.
func (l *matrixLab) dump() string {
	l.settle()
	return withoutAttempts(l.text(world.RenewedByProxmox()...))
}

// state is the part of the world that the next process can observe, as text.
func (l *matrixLab) state() string {
	l.settle()
	return l.text(world.Renewed{Name: "digest"}, world.Renewed{Name: "vmgenid"}, world.Renewed{Name: "meta"}, world.Renewed{Name: "tasks"})
}

// momentary is the present world, including work in progress.
func (l *matrixLab) momentary() string {
	var text strings.Builder
	text.WriteString(l.text())
	for _, t := range l.world.Tasks() {
		if t.Running {
			text.WriteString(t.UPID)
		}
	}
	return text.String()
}

var madeUpUUID = regexp.MustCompile(`smbios1: uuid=[0-9a-f-]{36}`)

func (l *matrixLab) text(leaveOut ...world.Renewed) string {
	names := map[*world.Media]string{}
	for _, d := range l.disks {
		names[d.media] = d.name
	}
	text := l.world.Dump(func(m *world.Media) string {
		if name := names[m]; name != "" {
			return "the content of " + name
		}
		if m.Size() == 0 {
			return "blank"
		}
		if bytes.Equal(m.Bytes(), matrixDiskImage()) {
			return "the image"
		}
		return m.SHA256()
	}, leaveOut...)
	text = spareOptions.ReplaceAllStringFunc(withoutAttempts(text), sortedOptions)
	text = regexp.MustCompile(`(?m)^storage .*: 0 volumes\n`).ReplaceAllString(text, "") // it depends on who has listed it
	return madeUpUUID.ReplaceAllStringFunc(text, func(s string) string {
		if strings.HasSuffix(s, "-000000009011") {
			return s
		}
		return "smbios1: made up by Proxmox"
	})
}

// withoutParking removes from a dump the parking VM that a cancelled exchange leaves, with
// a closed record and no more disks than before.
func withoutParking(dump string) string {
	var kept strings.Builder
	skip := false
	for line := range strings.Lines(dump) {
		if strings.HasPrefix(line, "VM ") || strings.HasPrefix(line, "storage ") {
			skip = strings.HasPrefix(line, "VM 99")
		}
		if !skip {
			kept.WriteString(line)
		}
	}
	text := smallVolume.ReplaceAllString(givenUpVolume.ReplaceAllString(kept.String(), ""), "")
	text = regexp.MustCompile(`(?m)^firewall of VM 99.*\n`).ReplaceAllString(text, "")
	text = regexp.MustCompile(`(?m)^(storage .*): \d+ volumes$`).ReplaceAllString(text, "$1")
	return parkingInPool.ReplaceAllString(text, "$1]")
}

// spareOptions are those of the new system disk of a cancelled exchange, as the record has them: with its size, in the order
// of Proxmox, once the VM had it, and with backup=0 if that was all that the VM had of it. Nothing boots from it again.
var spareOptions = regexp.MustCompile(`"options":"[^"]*","givenUp":true`)

func sortedOptions(entry string) string {
	options := strings.Split(strings.Split(entry, `"`)[3], ",")
	options = slices.DeleteFunc(options, func(o string) bool { return strings.HasPrefix(o, "size=") || o == "backup=0" })
	slices.Sort(options)
	return fmt.Sprint(options)
}

// givenUpVolume is the new system disk of a cancelled exchange. A prepared one that was not grown yet is smaller.
var (
	givenUpVolume = regexp.MustCompile(`(?m)^  (?:99\d\d/)?vm-99\d\d-disk-\S+ \d+G = (?:blank|the image)\n`)
	smallVolume   = regexp.MustCompile(`(?m)^  (?:99\d\d/)?vm-99\d\d-disk-\S+ \d+K = the image\n`)
)

// withoutCloudInit removes the cloud-init drive's content and existence from a dump.
func withoutCloudInit(dump string) string {
	dump = regexp.MustCompile(`(?m)^  \S*vm-\d+-cloudinit\S* 4M = blank\n`).ReplaceAllString(dump, "")
	dump = regexp.MustCompile(`(?m)^(storage .*): \d+ volumes$`).ReplaceAllString(dump, "$1")
	return regexp.MustCompile(`(?m)(-cloudinit.*) = blank$`).ReplaceAllString(dump, "$1")
}

var parkingInPool = regexp.MustCompile(`(?m)^(pool .*?)(?: 99\d\d)+\]`)

// done waits for a task.
func (l *matrixLab) done(upid string, err error) error {
	l.world.WaitTask(upid)
	return err
}

// sweep deletes, as root, the new volumes that no configuration names, and lists them.
func (l *matrixLab) sweep() (left []string) {
	names, known := l.names(), map[*world.Media]bool{}
	for _, d := range l.disks {
		known[d.media] = true
	}
	for _, storage := range []string{"data", "fast"} {
		volumes, err := l.world.Volumes(storage, matrixHost)
		must(l.t, err)
		for _, v := range volumes {
			media := l.world.Media(v.Volid, matrixHost)
			if known[media] || len(names[media]) > 0 {
				continue
			}
			left = append(left, v.Volid)
			must(l.t, l.done(l.world.DeleteVolume("root@pam", matrixHost, v.Volid)))
		}
	}
	return left
}

// removeHalfMade removes, as root, VMs of which only the creation's lock exists.
func (l *matrixLab) removeHalfMade(which func(id int) bool) (found bool) {
	for _, vm := range l.world.VMs() {
		if vm.Config["lock"] != "create" || !which(vm.ID) {
			continue
		}
		found = true
		l.world.SetLock(vm.ID, "")
		must(l.t, l.done(l.world.DestroyVM("root@pam", vm.Host, world.DestroyRequest{ID: vm.ID})))
	}
	return found
}
