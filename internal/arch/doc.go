// Package arch has only tests. They check the structure of all other packages: imports (table_test.go lists those that
// are allowed), sizes of functions and files, and forbidden constructs.
package arch
