package cluster

import (
	"fmt"
	"slices"
	"strings"
)

// DiskSelector is what one document of a machine configuration selects of a machine's disks, or of what is on them.
type DiskSelector struct {
	ID       string // of the volume that it is for, as in VolumeStatus; "": for none
	Document string // "UserVolumeConfig data", "machine.install.diskSelector"
	Match    string // the expression, or the device of machine.disks
	Kind     SelectorKind
	Found    []string // what matches, in Talos' order: "sdb", "sdb1"; without what Talos never takes
	System   string   // the one of Found that is on the system disk; "": none is
	Unknown  string   // why it can't be evaluated now; "": it was
	Broken   string   // Talos' own error: it fails with this on each machine
}

// SelectorKind says what Talos does with what a selector finds.
type SelectorKind string

// The kinds of selectors.
const (
	ForPartition SelectorKind = "partition" // made on the first disk with room, if no partition has its label yet
	ForWholeDisk SelectorKind = "disk"      // the volume is the disk, looked for at each boot
	ForDevice    SelectorKind = "device"    // of machine.disks: its partitions are found by their numbers
	ForExisting  SelectorKind = "existing"  // a volume that somebody else has made, looked for at each boot
	ForMembers   SelectorKind = "members"   // of a volume group or array
	ForInstall   SelectorKind = "install"
)

// outcomes say what Talos does if a selector matches nothing, more than one thing, or something on the system disk
// (block/internal/volumes/locate.go, user_disk_config.go, unattended_install.go); "": as it is meant to.
type outcomes struct {
	noun                     string // for what it finds
	nothing, several, system string
	fatal                    string // the fields with which the node would not be whole
}

const (
	noVolume   = "Talos could not make the volume, and the node would not be whole: attach the disk first, or change the selector"
	noExisting = "pods would write to EPHEMERAL below its path instead, and the node would not be whole: attach the disk first, or change the selector"
	onSystem   = "what is on it goes with the system disk when the node is recreated"
	otherUse   = "which has partitions of Talos: it could not be used, and the node would not be whole"
)

var selectorOutcomes = map[SelectorKind]outcomes{
	ForPartition: {"disk", noVolume, "Talos takes the first one with room", onSystem, "nothing"},
	ForWholeDisk: {"disk", noVolume, "Talos refuses that for a whole disk, and the node would not be whole", otherUse, "nothing several system"},
	ForDevice:    {"disk", "Talos waits for it, and the node would not come up: attach the disk first, or change the device", "", otherUse, "nothing system"},
	ForExisting:  {"volume", noExisting, "Talos takes the first one that it lists, at each boot anew", onSystem, "nothing"},
	ForMembers:   {"volume", "Talos makes it once something does, for example a volume of the same configuration", "", "", ""},
	ForInstall:   {"disk", "recast names the disk itself, but nobody else could install the machine with it", "recast names the disk itself, Talos alone would erase the first one", "", ""},
}

// TellSelectors says what is to be known of the selectors of a machine's configuration; refused are those with which
// the machine would not be whole.
func TellSelectors(selectors []DiskSelector, machine string) (notes, refused []string) {
	later := map[string][]string{} // documents by why they can't be evaluated
	for _, s := range selectors {
		if s.Unknown != "" {
			later[s.Unknown] = append(later[s.Unknown], s.Document)
			continue
		}
		text, fatal := s.tell(machine)
		switch {
		case text == "":
		case fatal:
			refused = append(refused, text)
		default:
			notes = append(notes, text)
		}
	}
	for _, s := range selectors {
		if documents := later[s.Unknown]; s.Unknown != "" && len(documents) > 0 {
			notes = append(notes, fmt.Sprintf("what %s selects can't be evaluated yet: %s", strings.Join(documents, ", "), s.Unknown))
			delete(later, s.Unknown)
		}
	}
	return notes, refused
}

func (s DiskSelector) tell(machine string) (text string, fatal bool) {
	o := selectorOutcomes[s.Kind]
	of := "the selector of " + s.Document
	if s.Kind == ForDevice {
		of = s.Document
	}
	var says []string
	add := func(field, format string, a ...any) {
		says, fatal = append(says, fmt.Sprintf(format, a...)), fatal || slices.Contains(strings.Fields(o.fatal), field)
	}
	switch {
	case s.Broken != "":
		return fmt.Sprintf("Talos can't evaluate %s: %s", of, s.Broken), s.Kind != ForMembers && s.Kind != ForInstall
	case len(s.Found) == 0:
		add("nothing", "no %s of %s matches %s: %s", o.noun, machine, of, o.nothing)
	case len(s.Found) > 1 && o.several != "":
		add("several", "%d %ss match %s (%s): %s", len(s.Found), o.noun, of, strings.Join(s.Found, ", "), o.several)
	}
	if s.System != "" && o.system != "" && !s.byDefault() {
		add("system", "%s matches the system disk (%s): %s", of, s.System, o.system)
	}
	return strings.Join(says, "; "), fatal
}

// byDefault says whether the selector of a system volume puts it where Talos does without one.
func (s DiskSelector) byDefault() bool {
	return s.Match == "system_disk" && strings.HasPrefix(s.Document, "VolumeConfig ")
}
