// A vector of small elements at any address. PoCL reads them two at a time in vload.
struct packed_ELEMENTS {
    ELEMENTS all;
} __attribute__((packed));
