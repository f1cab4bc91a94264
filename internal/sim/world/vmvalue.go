package world

import (
	"strconv"
	"strings"
)

// resolveCDROM: cdrom is an alias of ide2 ($resolve_cdrom_alias in Qemu.pm).
func resolveCDROM(config map[string]string) {
	value, set := config["cdrom"]
	if !set {
		return
	}
	if !strings.Contains(value, "media=") {
		value += ",media=cdrom"
	}
	config["ide2"] = value
	delete(config, "cdrom")
}

// checkBalloon checks memory options against each other (update_vm_api in Qemu.pm).
func (v *vm) checkBalloon(set map[string]string) error {
	value := func(key, otherwise string) int {
		for _, config := range []map[string]string{set, v.pending, v.config} {
			if text := strings.TrimPrefix(config[key], "current="); text != "" {
				otherwise = text
				break
			}
		}
		n, err := strconv.Atoi(otherwise)
		if err != nil {
			return 0
		}
		return n
	}
	_, memory := set["memory"]
	_, balloon := set["balloon"]
	if (memory || balloon) && value("balloon", "0") > value("memory", "512") {
		return failf("balloon value too large (must be smaller than assigned memory)")
	}
	return nil
}
