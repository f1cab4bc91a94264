package talosapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/world"
)

// nvramMagic is what the bytes of an EFI disk begin with once something was
// written there; one without any is as it was allocated.
const nvramMagic = "recast lab NVRAM\n"

// variables are the firmware's, as far as the lab has them. They are on the VM's
// EFI disk, not on the system disk: another system disk under the same firmware
// meets what the one before has left there.
type variables struct {
	LoaderEntryDefault string `json:",omitempty"`
}

// NVRAM is the content of the EFI disk of a machine that was installed with that image.
func NVRAM(img artefact.Image) []byte {
	return variables{LoaderEntryDefault: loader{}.nextName(img.TalosVersion)}.encode()
}

func (v variables) encode() []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("talosapi: %v", err)) // a string always has a JSON form
	}
	return append([]byte(nvramMagic), b...)
}

func readVariables(content []byte) (v variables) {
	if rest, ok := bytes.CutPrefix(content, []byte(nvramMagic)); ok {
		_ = json.Unmarshal(rest, &v) // unreadable variables are none
	}
	return v
}

// uefi says that the machine has UEFI firmware; with SeaBIOS there are no
// variables, and the boot loader keeps its default beside its entries.
func (m *machine) uefi() bool { return m.hw.NVRAM != nil }

// defaultEntry is the name of the entry that the boot loader is to take; "" when nothing says so.
func (m *machine) defaultEntry(l loader) string {
	if m.uefi() {
		return readVariables(m.hw.NVRAM.Bytes()).LoaderEntryDefault
	}
	return l.Default
}

// setDefault makes an entry of the disk at that key the default one.
func (m *machine) setDefault(key, name string) error {
	if m.uefi() {
		writeDefault(m.hw.NVRAM, name)
		return nil
	}
	return m.editLoader(key, func(l *loader) { l.Default = name })
}

func writeDefault(nvram *world.Media, name string) {
	v := readVariables(nvram.Bytes())
	v.LoaderEntryDefault = name
	nvram.Write(v.encode())
}

// selected is the entry that the boot loader takes: the default one if it is
// there, else the first in its own order (config_select_default_entry in
// systemd's boot.c).
func (m *machine) selected(l loader) (bootEntry, bool) {
	if e, ok := l.entry(m.defaultEntry(l)); ok {
		return e, true
	}
	return m.first(l)
}

// loadedEntry is what systemd-boot says that it has loaded. On an ISO, too, it loads
// an entry, which has the name of the first one that an installer writes: only the
// medium tells them apart.
func (m *machine) loadedEntry(med medium) string {
	if med.entry == "" && m.uefi() {
		return strings.ToLower(loader{}.nextName(med.image.TalosVersion))
	}
	return med.entry
}

// bootedEntry is the entry that the system takes itself to be booted from. After a
// kexec that is what the variable LoaderEntryOneShot names, which the kernel can
// write only with efibc; else it is what systemd-boot said when the firmware ran
// last (controllers/runtime/booted_entry.go).
func (m *machine) bootedEntry(med medium) string {
	before, _ := m.bootLoader.Load().(string)
	if m.has().NoOneShot && before != "" {
		return before
	}
	return m.loadedEntry(med)
}
