package config

import "slices"

// Values of images.builder.
const (
	BuilderAuto    = "auto"
	BuilderFactory = "factory"
	BuilderImager  = "imager"
)

// Values of images.boot.
const (
	BootISO  = "iso"
	BootDisk = "disk"
	BootAuto = "auto"
)

// BootStorages lists the storages of boot ISOs and of disk images, each once.
func (c *Config) BootStorages() []string {
	list := slices.Clone(c.Images.ISO.Storage)
	for _, s := range c.Images.Disk.Storage {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// BuilderOf returns the builder of a schematic's images: BuilderFactory or BuilderImager.
func (im Images) BuilderOf(s Schematic) string {
	if im.Builder == BuilderImager || im.Builder == BuilderAuto && len(s.Extensions) > 0 {
		return BuilderImager
	}
	return BuilderFactory
}
