package world

// Firmware boots the guest of a VM that is powered on. The Talos simulator is one: it
// reads the media in boot order.
type Firmware interface {
	// PowerOn is called when the VM's process has started, without holding any lock of the
	// world.
	PowerOn(hw *Hardware) Guest
}

// Guest is what runs inside a VM. The world calls its methods without holding any lock.
type Guest interface {
	// Shutdown is the ACPI power button: the guest powers itself off later by calling
	// Hardware.PowerOff, or ignores it.
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
	MACs   []string // upper-case, in order of netN
	// CloudInit are the ipconfigN settings by number, as on the cloud-init drive since power
	// on; nil without such a drive.
	CloudInit map[int]string
	Arch      string // "amd64" or "arm64"
	CPU       string
	Memory    int    // MiB
	SCSI      string // scsihw; "" is an LSI controller
	Q35       bool   // the machine's IDE drives are on its AHCI controller

	// Drives reads the drives as plugged in now, in bus order; media may have changed since power on.
	Drives func() []Drive
	// NVRAM is where UEFI firmware stores its variables: the content of efidisk0, or temporary
	// memory of the process if a VM has none; nil with SeaBIOS.
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
