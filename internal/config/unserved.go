package config

// unserved looks up a key or value that recast knows but this version does
// not serve, and says what to do instead. In a path, [] stands for any index
// and * for any name; "=value" after a path means that value only.
func unserved(path string) (string, bool) {
	advice, ok := map[string]string{
		"kubernetes":                       "remove it; Kubernetes stays at the version it has",
		"images.builder=imager":            "use factory or auto",
		"images.mirror":                    "remove it; nodes pull the installer from the factory",
		"images.secureBoot=true":           "use false",
		"images.signature=require":         "use warn",
		"images.signature=off":             "use warn",
		"images.iso.delivery=download-url": "use upload or auto",
		"schematics.*.extensions":          "name official extensions in the schematic's file",
		"nodes[].holder":                   "leave a node whose disks belong to another VM out of this file",
		"nodes[].acceptLoss":               "remove it; a node that would lose data is refused",
		"nodes[].strategy=reimage":         "use recreate or auto",
		"nodes[].strategy=in-place":        "use recreate or auto",
		"roll.strategy=reimage":            "use recreate or auto",
		"roll.strategy=in-place":           "use recreate or auto",
		"roll.etcdSnapshot":                "remove it; take one with talosctl etcd snapshot",
		"roll.gates":                       "remove it",
		"roll.hooks":                       "remove it",
	}[path]
	return "not served by this version of recast: " + advice, ok
}
