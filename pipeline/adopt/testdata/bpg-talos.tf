# cp1, wk1
resource "proxmox_virtual_environment_vm" "talos" {
  lifecycle {
    prevent_destroy = true
    ignore_changes  = [disk, efi_disk, cdrom, boot_order, description, started, on_boot]
  }
}
removed {
  from = proxmox_virtual_environment_vm.talos
  lifecycle {
    destroy = false
  }
}
# resets its machine
# cp1, wk1
removed {
  from = talos_machine_configuration_apply.this
  lifecycle {
    destroy = false
  }
}
