package schematics

// renamed returns the current name of an official extension that schematics may
// still call by an older one. Image Factories translate it when they build. See
// ExtensionNameAlias in siderolabs/image-factory, internal/profile/profile.go.
func renamed(name string) string {
	switch name {
	case "siderolabs/v4l-uvc":
		return "siderolabs/v4l-uvc-drivers"
	case "siderolabs/usb-modem":
		return "siderolabs/usb-modem-drivers"
	case "siderolabs/gasket":
		return "siderolabs/gasket-driver"
	case "siderolabs/talos-vmtoolsd":
		return "siderolabs/vmtoolsd-guest-agent"
	case "siderolabs/xe-guest-utilities":
		return "siderolabs/xen-guest-agent"
	case "siderolabs/nvidia-container-toolkit":
		return "siderolabs/nvidia-container-toolkit-lts"
	case "siderolabs/nvidia-open-gpu-kernel-modules":
		return "siderolabs/nvidia-open-gpu-kernel-modules-lts"
	case "siderolabs/nonfree-kmod-nvidia":
		return "siderolabs/nonfree-kmod-nvidia-lts"
	case "siderolabs/nvidia-fabricmanager":
		return "siderolabs/nvidia-fabric-manager-lts"
	case "siderolabs/i915-ucode":
		return "siderolabs/i915"
	case "siderolabs/amdgpu-firmware":
		return "siderolabs/amdgpu"
	}
	return ""
}
