package world

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// PowerOn starts a VM at once, without task or permission checks, to build a lab.
func (w *World) PowerOn(id int) error {
	w.mu.Lock()
	v, ok := w.vms[id]
	if !ok {
		w.mu.Unlock()
		return fmt.Errorf("power on VM %d: there is none", id)
	}
	p, err := w.launch(v)
	w.mu.Unlock()
	if err != nil {
		return fmt.Errorf("power on VM %d: %w", id, err)
	}
	w.boot(p)
	return nil
}

// PowerOff stops a VM's process at once and returns when its guest has ended.
func (w *World) PowerOff(id int) error {
	w.mu.Lock()
	v, ok := w.vms[id]
	if !ok {
		w.mu.Unlock()
		return fmt.Errorf("power off VM %d: there is none", id)
	}
	p := v.proc
	ended := w.endProcess(v, p)
	w.mu.Unlock()
	if ended {
		p.kill()
	}
	return nil
}

// Start starts a VM in a task. Only the task checks that the VM exists. For a VM under HA the task only asks HA, and
// ends long before the VM runs.
func (w *World) Start(user, host string, id int) (string, error) {
	return w.power(user, host, id, "started", func(*haService) {}, func() string { return w.startVM(user, host, id) })
}

func (w *World) power(user, host string, id int, state string, ask func(*haService), begin func() string) (upid string, err error) {
	defer w.mu.changing()()
	if err := w.check(user, vmPath(id), "VM.PowerMgmt"); err != nil {
		return "", err
	}
	if err := w.checkQuorum(); err != nil && state == "started" {
		return "", err
	}
	if w.haStatus(id).Managed {
		return w.requestHA(user, host, id, state, ask), nil
	}
	return begin(), nil
}

// startVM starts the task; mu must be held.
func (w *World) startVM(user, host string, id int) (upid string) {
	return w.vmTask("qmstart", user, host, id, func(t *task, v *vm) error {
		p, err := w.launch(v)
		if err == nil && v.temporaryVariables() {
			t.warnf("no efidisk configured! Using temporary efivars disk.")
		}
		w.mu.Unlock()
		if err == nil {
			w.boot(p)
		}
		w.mu.Lock()
		return err
	})
}

// Stop stops a VM's process in a task; stopping a stopped VM succeeds. For a VM under HA the task only asks HA, as in
// Start.
func (w *World) Stop(user, host string, id int) (string, error) {
	return w.power(user, host, id, "stopped", func(s *haService) { s.now = true }, func() string { return w.stopVM(user, host, id) })
}

func (w *World) stopVM(user, host string, id int) (upid string) {
	return w.vmTask("qmstop", user, host, id, func(_ *task, v *vm) error {
		w.cut(v, v.proc)
		return nil
	})
}

// ShutdownRequest asks for a clean shutdown.
type ShutdownRequest struct {
	ID        int
	Timeout   time.Duration // 0 means a minute
	ForceStop bool          // stop the process after the timeout
}

// Shutdown presses a VM's power button in a task and waits for the guest to power off.
func (w *World) Shutdown(user, host string, r ShutdownRequest) (string, error) {
	ask := func(s *haService) { s.timeout = int(r.Timeout.Seconds()) }
	return w.power(user, host, r.ID, "stopped", ask, func() string { return w.shutdownVM(user, host, r) })
}

func (w *World) shutdownVM(user, host string, r ShutdownRequest) (upid string) {
	if r.Timeout == 0 {
		r.Timeout = time.Minute
	}
	return w.vmTask("qmshutdown", user, host, r.ID, func(t *task, v *vm) error { return w.powerButton(t, v, r) })
}

// Reset restarts a VM's guest in a task; the process keeps running.
func (w *World) Reset(user, host string, id int) (string, error) {
	defer w.mu.changing()()
	v, err := w.vmFor(user, "VM.PowerMgmt", host, id)
	if err != nil {
		return "", err
	}
	if v.proc == nil {
		return "", failf("VM %d not running", id)
	}
	return w.vmTask("qmreset", user, host, id, func(_ *task, v *vm) error { return w.restart(v) }), nil
}

// lockedTask starts a worker that acts, without mu, under the lock of a VM's configuration; mu must be held.
func (w *World) lockedTask(kind, user, host string, id int, act func(*task) error) (upid string) {
	return w.startTask(host, kind, strconv.Itoa(id), user, func(t *task) error {
		unlock, err := w.lockConfig(id)
		if err != nil {
			return err
		}
		defer unlock()
		if err := t.begin(taskTime); err != nil {
			return err
		}
		return act(t)
	})
}

// vmTask starts a worker that acts under the lock of a VM's configuration; mu must be held. It calls
// act with mu held; act may release it meanwhile.
func (w *World) vmTask(kind, user, host string, id int, act func(*task, *vm) error) (upid string) {
	return w.lockedTask(kind, user, host, id, func(t *task) error {
		defer w.mu.changing()()
		if w.closed {
			return ErrClosed
		}
		v, err := w.unlocked(host, id)
		if err != nil {
			return err
		}
		return act(t, v)
	})
}

// cut ends a process and waits for its guest's end; mu is held, but released meanwhile.
func (w *World) cut(v *vm, p *process) {
	ended := w.endProcess(v, p)
	w.mu.Unlock()
	if ended {
		p.kill()
	}
	w.mu.Lock()
}

// powerButton does the shutdown worker's part; mu is held, but released meanwhile.
func (w *World) powerButton(t *task, v *vm, r ShutdownRequest) error {
	p := v.proc
	if p == nil {
		return nil
	}
	expected := agentEnabled(v.config["agent"])
	w.mu.Unlock()
	_, answers := w.askAgent(v.id)
	gone, err := w.pressAndWait(t, p, r.Timeout, expected && !answers)
	w.mu.Lock()
	switch {
	case err != nil:
		return err
	case gone:
		return nil
	case r.ForceStop:
		t.warnf("VM still running - terminating now with SIGTERM")
		w.cut(v, p)
		return nil
	}
	return failf("VM quit/powerdown failed - got timeout")
}

// pressAndWait presses the button and waits for the end of the process. With deadAgent, three seconds pass first, in
// which Proxmox waits for an agent that doesn't answer.
func (w *World) pressAndWait(t *task, p *process, timeout time.Duration, deadAgent bool) (gone bool, err error) {
	if deadAgent {
		if err := t.delay(3 * time.Second); err != nil {
			return false, err
		}
	}
	<-p.booted
	p.guest.Shutdown()
	timer := time.NewTimer(w.scaled(timeout))
	defer timer.Stop()
	select {
	case <-p.gone:
		return true, nil
	case <-timer.C:
		return false, nil
	case <-w.done:
		return false, ErrClosed
	case <-t.stop:
		return false, errInterrupted
	}
}

// restart ends the guest and boots the same machine again; mu is held, but released meanwhile.
func (w *World) restart(v *vm) error {
	old := v.proc
	if old == nil || w.closed {
		return failf("VM %d not running", v.id)
	}
	p := &process{started: old.started, gone: make(chan struct{}), booted: make(chan struct{})}
	p.hw = w.hardware(v, p)
	p.hw.BootOrder, p.hw.NVRAM = old.hw.BootOrder, old.hw.NVRAM
	v.proc = p
	close(old.gone)
	w.mu.Unlock()
	old.kill()
	w.boot(p)
	w.mu.Lock()
	return nil
}

// process is a VM's running process and the guest in it.
type process struct {
	started time.Time
	hw      *Hardware
	gone    chan struct{} // closed when the process has ended
	booted  chan struct{} // closed when the firmware has returned the guest
	guest   Guest         // set before booted is closed
	paused  bool          // only for a backup: no guest runs in it
}

// idleGuest is the guest of a VM without firmware: it does nothing and ignores its power button.
type idleGuest struct{}

func (idleGuest) Shutdown() {}
func (idleGuest) Kill()     {}

var _ Guest = idleGuest{}

func (p *process) kill() {
	<-p.booted
	p.guest.Kill()
}

// launch starts a VM's process; mu must be held. The caller then calls boot without holding mu.
func (w *World) launch(v *vm) (*process, error) {
	if w.closed {
		return nil, ErrClosed
	}
	if v.proc != nil {
		return nil, failf("VM %d already running", v.id)
	}
	w.applyPending("", v)
	if err := firstError(v.checkCPUs(), w.checkNetworks(v), w.checkMappings(v)); err != nil {
		return nil, err
	}
	used := w.references()
	for _, key := range driveKeys(v.config) {
		d, err := parseDrive(key, v.config[key])
		if err != nil {
			return nil, err
		}
		if d.empty() || strings.HasPrefix(key, "unused") {
			continue
		}
		s, vol, err := w.volume(d.volid, v.host)
		if err == nil && s != nil {
			err = s.activate(v.host) // activate_volumes of Storage.pm
		}
		if err == nil && key != "tpmstate0" {
			err = s.imageLock(vol, used[vol.media])
		}
		if err != nil {
			return nil, err
		}
	}
	p := &process{started: time.Now(), gone: make(chan struct{}), booted: make(chan struct{})}
	p.hw = w.hardware(v, p)
	v.proc, v.qmp = p, ""
	return p, nil
}

// HostCores is how many processors every host has.
const HostCores = 16

// checkCPUs checks the processors; only a start makes this check (config_to_command in QemuServer.pm).
func (v *vm) checkCPUs() error {
	if NumberOr(v.config["cores"], 1)*NumberOr(v.config["sockets"], 1) > HostCores {
		return failf("MAX %d vcpus allowed per VM on this node", HostCores)
	}
	return nil
}

// imageLock returns the error of QEMU's lock on an image that QEMU writes to. Only file systems have the lock, not
// block storages.
func (s *storage) imageLock(vol *volume, users []reference) error {
	if s == nil || s.block() || vol.content == "iso" || len(runningIn(users)) == 0 {
		return nil
	}
	return failf("start failed: QEMU exited with code 1")
}

func (w *World) launchPaused(v *vm) (*process, error) {
	p, err := w.launch(v)
	if err != nil {
		return nil, err
	}
	p.paused, p.guest, v.qmp = true, idleGuest{}, "prelaunch"
	close(p.booted)
	return p, nil
}

// boot runs the firmware; mu must not be held.
func (w *World) boot(p *process) {
	w.mu.Lock()
	firmware := w.firmware
	for _, v := range w.vms {
		if v.proc == p {
			w.violateSharing(v)
		}
	}
	w.mu.Unlock()
	p.guest = idleGuest{}
	if firmware != nil {
		p.guest = firmware.PowerOn(p.hw)
	}
	close(p.booted)
}

func (w *World) hardware(v *vm, p *process) *Hardware {
	memory := NumberOr(strings.TrimPrefix(v.config["memory"], "current="), 512)
	return &Hardware{
		VMID: v.id, Name: v.config["name"], Host: v.host, UUID: v.uuid(), Serial: v.smbios("serial"), SKU: v.smbios("sku"),
		MACs: v.macs(), CloudInit: v.cloudInit(), CPU: cmp.Or(v.config["cpu"], "kvm64"), Memory: memory, BootOrder: bootOrder(v.config["boot"]),
		Arch: v.arch(), NVRAM: w.nvram(v), SecureBoot: v.enrolled(), SCSI: v.config["scsihw"], Q35: strings.Contains(v.config["machine"], "q35"),
		Drives:   func() []Drive { return w.drives(v, p) },
		PowerOff: func() { w.poweredOff(v, p) },
	}
}

// cloudInit returns the network part of the VM's cloud-init drive, which is rewritten at every start (vm_start_nolock
// in QemuServer.pm).
func (v *vm) cloudInit() map[int]string {
	for _, d := range drivesIn(v.config) {
		if !isCloudInit(d.volid) {
			continue
		}
		settings := map[int]string{}
		for key, value := range v.config {
			if n, err := strconv.Atoi(strings.TrimPrefix(key, "ipconfig")); err == nil && optionName(key) == "ipconfig" {
				settings[n] = value
			}
		}
		return settings
	}
	return nil
}

// temporaryVariables reports whether a VM has UEFI firmware but no EFI disk.
func (v *vm) temporaryVariables() bool {
	return v.config["bios"] == "ovmf" && v.config["efidisk0"] == ""
}

// nvram returns the media with the firmware's variables. Without an EFI disk every start creates new variables
// (OVMF.pm).
func (w *World) nvram(v *vm) *Media {
	if v.config["bios"] != "ovmf" {
		return nil
	}
	if _, vol, err := w.volume(driveVolid("efidisk0", v.config["efidisk0"]), v.host); err == nil {
		return vol.media
	}
	return NewMedia(nil)
}

// arch returns the VM's architecture as images name it; the hosts are x86_64.
func (v *vm) arch() string {
	if v.config["arch"] == "aarch64" {
		return "arm64"
	}
	return "amd64"
}

// enrolled reports whether the firmware's variables contain keys, which enables Secure Boot; variables of 2 MB never
// contain keys (get_ovmf_files in OVMF.pm).
func (v *vm) enrolled() bool {
	d, err := parseDrive("efidisk0", v.config["efidisk0"])
	return err == nil && v.config["bios"] == "ovmf" && v.arch() == "amd64" && d.options["efitype"] == "4m" && d.options["pre-enrolled-keys"] == "1"
}

// drives returns the drives that the guest of process p sees; none once the process has ended.
func (w *World) drives(v *vm, p *process) []Drive {
	defer w.mu.looking()()
	if v.proc != p {
		return nil
	}
	var list []Drive
	for _, key := range driveKeys(v.config) {
		d, err := parseDrive(key, v.config[key])
		if err != nil || strings.HasPrefix(key, "unused") || slices.Contains([]string{"efidisk0", "tpmstate0"}, key) {
			continue
		}
		out := Drive{Key: key, Serial: d.options["serial"], WWN: strings.TrimPrefix(d.options["wwn"], "0x"), CDROM: d.cdrom()}
		if _, vol, err := w.volume(d.volid, v.host); err == nil && !d.empty() {
			out.Media, out.SizeBytes = vol.media, vol.size
		}
		list = append(list, out)
	}
	return list
}

// poweredOff ends the process from inside the guest. Kill runs in another goroutine,
// because the guest may be waiting for us.
func (w *World) poweredOff(v *vm, p *process) {
	defer w.mu.changing()()
	if w.endProcess(v, p) {
		w.spawn(p.kill)
	}
}

// endProcess removes a VM's process, if the VM still has process p, and applies pending changes; mu must be held. The
// caller kills the guest without holding mu.
func (w *World) endProcess(v *vm, p *process) bool {
	if p == nil || v.proc != p {
		return false
	}
	v.proc, v.qmp = nil, ""
	v.stopped, v.ranSince = time.Now(), p.started
	close(p.gone)
	if w.writeConfig(v) == nil {
		w.applyPending("", v)
	}
	w.guestEnded(haSID(v.id))
	return true
}

// Firmware boots the guest of a VM that is powered on. The Talos simulator is a Firmware: it reads the media in boot
// order.
type Firmware interface {
	// PowerOn is called when the VM's process has started, without holding any lock of the world.
	PowerOn(hw *Hardware) Guest
}

// Guest is what runs inside a VM. The world calls its methods without holding any lock.
type Guest interface {
	// Shutdown is the ACPI power button: the guest powers itself off later by calling Hardware.PowerOff, or ignores it.
	Shutdown()
	// Kill is called once the VM's process is gone (stop, delete, host down, or the guest's own PowerOff). It
	// returns when all goroutines and servers of the guest have ended.
	Kill()
}

// Hardware is a running VM as its guest sees it.
type Hardware struct {
	VMID   int
	Name   string
	Host   string
	UUID   string   // SMBIOS, lower-case
	Serial string   // SMBIOS serial
	SKU    string   // SMBIOS SKU number
	MACs   []string // upper-case, in order of netN
	// CloudInit are the ipconfigN settings by number, as on the cloud-init drive since power on; nil without such a drive.
	CloudInit map[int]string
	Arch      string // "amd64" or "arm64"
	CPU       string
	Memory    int    // MiB
	SCSI      string // scsihw; "" is an LSI controller
	Q35       bool   // the machine's IDE drives are on its AHCI controller

	// Drives reads the drives as plugged in now, in bus order; media may have changed since power on.
	Drives func() []Drive
	// NVRAM is where UEFI firmware stores its variables: the content of efidisk0, or temporary memory of the process
	// of a VM without efidisk0; nil with SeaBIOS.
	NVRAM *Media
	// SecureBoot says that the firmware boots only images signed by the keys on efidisk0.
	SecureBoot bool
	// BootOrder are the drive keys of boot: order=, fixed at power on.
	BootOrder []string
	// PowerOff ends the VM from inside. It may be called from any goroutine, also after Kill.
	PowerOff func()
}

// Drive is one drive of a running VM.
type Drive struct {
	Key       string // "scsi0"
	Serial    string // serial= of the drive, which the guest reads from the device
	WWN       string // wwn= of the drive, 16 hex digits
	CDROM     bool
	SizeBytes int64
	Media     *Media // nil for an empty CD-ROM drive
}

// AgentInterfaces asks a VM's guest agent for its network interfaces. Without an agent the request times out.
func (w *World) AgentInterfaces(user, host string, id int) ([]Interface, error) {
	if err := w.Check(user, vmPath(id), "VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted"); err != nil {
		return nil, err
	}
	v, err := w.LookupVM(host, id)
	switch _, configured := v.Config["agent"]; {
	case err != nil:
		return nil, err
	case !configured:
		return nil, failf("No QEMU guest agent configured")
	case !v.Running:
		return nil, failf("VM %d is not running", id)
	}
	list, ok := w.askAgent(id)
	if !ok {
		w.Delay(3 * time.Second)
		return nil, failf("QEMU guest agent is not running")
	}
	return list, nil
}

func (w *World) askAgent(id int) ([]Interface, bool) {
	if w.agent == nil {
		return nil, false
	}
	return w.agent(id)
}

// agentEnabled reads the agent option: "1", "enabled=1,fstrim_cloned_disks=1".
func agentEnabled(option string) bool {
	first, _, _ := strings.Cut(option, ",")
	on, ok := ParseBool(strings.TrimPrefix(first, "enabled="))
	return ok && on
}
