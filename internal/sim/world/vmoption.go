package world

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

type optionKind int

const (
	unknownOption optionKind = iota
	textOption
	boolOption
	intOption
	numberOption
	nameOption
	driveOption
)

// lastIndex is the highest index of each numbered option (qemu-server: $MAX_NETS and the
// like in QemuServer.pm, Drive.pm, PCI.pm, USB.pm).
var lastIndex = map[string]int{
	"audio": 0, "hostpci": 15, "ide": 3, "ipconfig": 31, "net": 31, "numa": 7, "parallel": 2, "rng": 0, "sata": 5,
	"scsi": 30, "serial": 3, "unused": 255, "usb": 13, "virtio": 15, "virtiofs": 9,
}

// inRange says whether a numbered option has a valid index.
func inRange(key string) bool {
	name := strings.TrimRight(key, "0123456789")
	last, numbered := lastIndex[name]
	if !numbered || key == "numa" {
		return true
	}
	n, err := strconv.Atoi(key[len(name):])
	return err == nil && n <= last && name+strconv.Itoa(n) == key
}

// kindOf is the kind of a VM's option.
func kindOf(key string) optionKind {
	if !inRange(key) {
		return unknownOption
	}
	if isDriveKey(key) {
		return driveOption
	}
	switch optionName(key) {
	case "acpi", "allow-ksm", "autostart", "ciupgrade", "freeze", "keephugepages", "kvm", "localtime",
		"numa", "onboot", "protection", "reboot", "tablet", "tdf", "template":
		return boolOption
	case "balloon", "cores", "cpuunits", "migrate_speed", "shares", "smp", "sockets", "vcpus":
		return intOption
	case "cpulimit", "migrate_downtime":
		return numberOption
	case "name":
		return nameOption
	case "affinity", "agent", "amd-sev", "arch", "args", "audio", "bios", "boot", "bootdisk", "cdrom", "cicustom",
		"cipassword", "citype", "ciuser", "cpu", "description", "hookscript", "hostpci", "hotplug", "hugepages",
		"intel-tdx", "ipconfig", "ivshmem", "keyboard", "lock", "machine", "memory", "nameserver", "net", "numa#",
		"ostype", "parallel", "rng", "scsihw", "searchdomain", "serial", "smbios1", "spice_enhancements", "sshkeys",
		"startdate", "startup", "tags", "usb", "vga", "virtiofs", "vmgenid", "vmstatestorage", "watchdog":
		return textOption
	}
	return unknownOption
}

// optionName is a key without its index: "net" for "net0", "numa#" for "numa0", "smbios1"
// unchanged.
func optionName(key string) string {
	name := strings.TrimRight(key, "0123456789")
	if name == key || key == "smbios1" {
		return key
	}
	if name == "numa" {
		return "numa#"
	}
	indexed := []string{
		"audio", "hostpci", "ide", "ipconfig", "net", "parallel", "rng", "sata", "scsi", "serial",
		"unused", "usb", "virtio", "virtiofs",
	}
	if slices.Contains(indexed, name) {
		return name
	}
	return key
}

// IsOption says whether VM configurations have such a key.
func IsOption(key string) bool { return kindOf(key) != unknownOption }

// IsNumeric says whether the API shows the option as a number, not as a string.
func IsNumeric(key string) bool {
	k := kindOf(key)
	return k == boolOption || k == intOption || k == numberOption
}

// unknownProperty is the message of Proxmox's schema about an unknown parameter.
const unknownProperty = "property is not defined in schema and the schema does not allow additional properties"

// checkOptions validates options and normalizes them as Proxmox does, in place.
func checkOptions(config map[string]string) error {
	wrong := map[string]string{}
	for key, value := range config {
		stored, problem := checkOption(key, value)
		if problem != "" {
			wrong[key] = problem
			continue
		}
		config[key] = stored
	}
	if len(wrong) > 0 {
		return badParams(wrong)
	}
	return nil
}

func checkOption(key, value string) (stored, problem string) {
	switch kindOf(key) {
	case unknownOption:
		return "", unknownProperty
	case boolOption:
		if value != "0" && value != "1" { // on and yes are only for property strings
			return "", "type check ('boolean') failed - got '" + value + "'"
		}
	case intOption:
		if _, err := strconv.Atoi(value); err != nil {
			return "", "type check ('integer') failed - got '" + value + "'"
		}
	case numberOption:
		if _, err := strconv.ParseFloat(value, 64); err != nil {
			return "", "type check ('number') failed - got '" + value + "'"
		}
	case nameOption:
		if !regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?)*$`).MatchString(value) {
			return "", "invalid format - value does not look like a valid DNS name\n"
		}
	case driveOption:
		if _, err := parseDrive(key, value); err != nil {
			return "", err.(*Error).Params[key]
		}
	case textOption:
		return checkText(key, value)
	}
	return value, ""
}

func checkText(key, value string) (stored, problem string) {
	switch key {
	case "bios":
		if value != "seabios" && value != "ovmf" {
			return "", "value '" + value + "' does not have a value in the enumeration 'seabios, ovmf'"
		}
	case "description":
		if len(value) > 8192 {
			return "", "value may only be 8192 characters long"
		}
		return strings.TrimRight(value, " \t\r\n\f\v"), "" // as read back from the file (parse_vm_config in QemuServer.pm)
	case "tags":
		tags := strings.FieldsFunc(value, func(r rune) bool { return r == ';' || r == ',' || r == ' ' })
		slices.Sort(tags)
		return strings.Join(slices.Compact(tags), ";"), ""
	}
	return value, ""
}

// ParseBool parses a boolean of Proxmox's parameters.
func ParseBool(s string) (value, ok bool) {
	switch strings.ToLower(s) {
	case "1", "on", "yes", "true":
		return true, true
	case "0", "off", "no", "false", "":
		return false, true
	}
	return false, false
}
