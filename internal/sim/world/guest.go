package world

// Firmware decides what runs in a VM that is switched on. The Talos simulator
// is one: it reads the bytes of the media in boot order.
type Firmware interface {
	// PowerOn is called without any lock of the world held, when the VM's process has started.
	PowerOn(hw *Hardware) Guest
}

// Guest is what runs inside a VM. The world calls its methods without holding any lock.
type Guest interface {
	// Shutdown is the ACPI power button: the guest powers itself off in its own
	// time by calling Hardware.PowerOff, or ignores it.
	Shutdown()
	// Kill is called once the VM's process is gone (stop, delete, host down, or
	// the guest's own PowerOff). The guest ends all its goroutines and servers, and returns when they have ended.
	Kill()
}

// Hardware is a switched-on VM as its guest sees it.
type Hardware struct {
	VMID   int
	Name   string
	Host   string
	UUID   string   // SMBIOS, lower-case
	Serial string   // SMBIOS serial
	MACs   []string // upper-case, in order of netN
	// CloudInit are the ipconfigN settings by their number, as the cloud-init drive has
	// had them since power on; nil where there is no such drive.
	CloudInit map[int]string
	Arch      string // "amd64" or "arm64"
	CPU       string
	Memory    int    // MiB
	SCSI      string // scsihw; "" is an LSI controller
	Q35       bool   // the machine's IDE drives are on its AHCI controller

	// Drives reads the drives as plugged in now, in bus order; media may have changed since power on.
	Drives func() []Drive
	// NVRAM is what UEFI firmware keeps its variables in: the content of efidisk0, or
	// something that goes with the process where a VM has none; nil with SeaBIOS.
	NVRAM *Media
	// SecureBoot says that the firmware boots only what the keys have signed that came with efidisk0.
	SecureBoot bool
	// BootOrder reads the drive keys of boot: order= as the running VM has them: fixed at power on.
	BootOrder []string
	// PowerOff ends the VM from inside. Safe to call from any goroutine, also after Kill.
	PowerOff func()
}

// Drive is one drive of a running VM.
type Drive struct {
	Key       string // "scsi0"
	Serial    string // serial= of the drive, what the guest reads from the device
	WWN       string // wwn= of the drive, 16 hex digits
	CDROM     bool
	SizeBytes int64
	Media     *Media // nil for an empty CD-ROM drive
}
