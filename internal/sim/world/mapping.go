package world

import (
	"maps"
	"slices"
	"strings"
)

// AddMapping adds a resource mapping of devices on hosts, which VMs can name: kind is
// "pci" or "usb".
func (w *World) AddMapping(kind, id string, hosts ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mappings[kind+" "+id] = toSet(hosts)
}

// mappingOf is the mapped device that an option names; "" if none.
func mappingOf(key, value string) (kind, id string) {
	kind = map[string]string{"hostpci": "pci", "usb": "usb"}[optionName(key)]
	return kind, property(value, "mapping")
}

// checkMappings: only a start checks that the device exists (parse_hostpci in PCI.pm,
// parse_usb_device in USB.pm).
func (w *World) checkMappings(v *vm) error {
	for _, key := range slices.SortedFunc(maps.Keys(v.config), compareKeys) {
		kind, id := mappingOf(key, v.config[key])
		if kind != "" && id != "" && !w.mappings[kind+" "+id][v.host] {
			return failf("%s device mapping not found for '%s'", strings.ToUpper(kind), id)
		}
	}
	return nil
}
