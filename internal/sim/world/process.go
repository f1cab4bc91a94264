package world

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// process is a VM's running process and the guest in it.
type process struct {
	started time.Time
	hw      *Hardware
	gone    chan struct{} // closed when the process has ended
	booted  chan struct{} // closed when the firmware has returned the guest
	guest   Guest         // set before booted is closed
	paused  bool          // only for a backup: no guest runs in it
}

// idleGuest runs if there is no firmware: it does nothing and ignores its power button.
type idleGuest struct{}

func (idleGuest) Shutdown() {}
func (idleGuest) Kill()     {}

var _ Guest = idleGuest{}

// kill ends the guest of a process that has ended.
func (p *process) kill() {
	<-p.booted
	p.guest.Kill()
}

// launch starts a VM's process; mu must be held. The caller then calls boot without it.
func (w *World) launch(v *vm) (*process, error) {
	if w.closed {
		return nil, ErrClosed
	}
	if v.proc != nil {
		return nil, failf("VM %d already running", v.id)
	}
	w.applyPending("", v)
	if err := v.checkCPUs(); err != nil {
		return nil, err
	}
	if err := w.checkNetworks(v); err != nil {
		return nil, err
	}
	if err := w.checkMappings(v); err != nil {
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

// checkCPUs checks what only a start checks (config_to_command in QemuServer.pm).
func (v *vm) checkCPUs() error {
	count := func(key string) int {
		n, err := strconv.Atoi(v.config[key])
		if err != nil {
			return 1
		}
		return n
	}
	if count("cores")*count("sockets") > HostCores {
		return failf("MAX %d vcpus allowed per VM on this node", HostCores)
	}
	return nil
}

// imageLock is QEMU's lock on an image that it writes to. Only file systems have it, not
// block storages.
func (s *storage) imageLock(vol *volume, users []reference) error {
	if s == nil || s.block() || vol.content == "iso" || len(runningIn(users)) == 0 {
		return nil
	}
	return failf("start failed: QEMU exited with code 1")
}

// launchPaused starts a VM's process without a guest.
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
	memory, err := strconv.Atoi(strings.TrimPrefix(v.config["memory"], "current="))
	if err != nil {
		memory = 512
	}
	return &Hardware{
		VMID: v.id, Name: v.config["name"], Host: v.host, UUID: v.uuid(), Serial: property(v.config["smbios1"], "serial"),
		MACs: v.macs(), CloudInit: v.cloudInit(), CPU: cmp.Or(v.config["cpu"], "kvm64"), Memory: memory, BootOrder: bootOrder(v.config["boot"]),
		Arch: v.arch(), NVRAM: w.nvram(v), SecureBoot: v.enrolled(), SCSI: v.config["scsihw"], Q35: strings.Contains(v.config["machine"], "q35"),
		Drives:   func() []Drive { return w.drives(v, p) },
		PowerOff: func() { w.poweredOff(v, p) },
	}
}

// cloudInit is the network part of the VM's cloud-init drive, which is rewritten at every
// start (vm_start_nolock in QemuServer.pm).
func (v *vm) cloudInit() map[int]string {
	for _, key := range driveKeys(v.config) {
		if d, err := parseDrive(key, v.config[key]); err != nil || !isCloudInit(d.volid) {
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

// temporaryVariables says whether a VM has UEFI firmware but no EFI disk.
func (v *vm) temporaryVariables() bool {
	return v.config["bios"] == "ovmf" && v.config["efidisk0"] == ""
}

// nvram is where the firmware's variables are. Without an EFI disk every start creates new
// ones (OVMF.pm).
func (w *World) nvram(v *vm) *Media {
	if v.config["bios"] != "ovmf" {
		return nil
	}
	if _, vol, err := w.volume(driveVolid("efidisk0", v.config["efidisk0"]), v.host); err == nil {
		return vol.media
	}
	return NewMedia(nil)
}

// arch is the VM's architecture as images name it; the hosts are x86_64.
func (v *vm) arch() string {
	if v.config["arch"] == "aarch64" {
		return "arm64"
	}
	return "amd64"
}

// enrolled says whether the firmware's variables contain keys, which enables Secure Boot;
// 2 MB ones never do (get_ovmf_files in OVMF.pm).
func (v *vm) enrolled() bool {
	d, err := parseDrive("efidisk0", v.config["efidisk0"])
	return err == nil && v.config["bios"] == "ovmf" && v.arch() == "amd64" && d.options["efitype"] == "4m" && d.options["pre-enrolled-keys"] == "1"
}

// drives are what the guest of process p sees; none once the process has ended.
func (w *World) drives(v *vm, p *process) []Drive {
	w.mu.Look()
	defer w.mu.Unlock()
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
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.endProcess(v, p) {
		w.spawn(p.kill)
	}
}

// endProcess removes a VM's process, if it still is that one, and applies pending changes;
// mu must be held. The caller kills the guest without it.
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
