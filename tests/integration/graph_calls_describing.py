"""A program that makes valid and invalid tensors, convolutions, pointwise functions and operations.

The module graph_calls says how it prints the answers.
"""

from graph_calls import (
    ADD,
    CONVOLUTION,
    DESCRIPTOR,
    FORWARD,
    OPERATIONS,
    PB,
    POINTWISE,
    PX,
    PY,
    RELU,
    Attributes,
    Pointer,
    Y,
    bias,
    convolution,
    descriptors,
    integers,
    library,
    like_y,
    make,
    make_tensor,
    print_answer,
    print_each_missing,
    print_statuses,
    print_values,
    w,
    x,
    y,
)

# --- creating ---

for number in (0, 1, 2, 3, 4, 5, 7, 8, 10, 11, 12, 13, 15, 16, 17):
    status, created = library.create(number)
    print_answer(f"create {number}", (status, bool(created)))
    print_answer(
        f"read {number} before it is finalized", library.get(created, "TENSOR_DATA_TYPE", "DATA_TYPE", 1)[:2]
    )
    print_answer(f"initialize {number}", library.dll.cudnnBackendInitialize(created))
    print_answer(f"destroy {number}", library.dll.cudnnBackendDestroyDescriptor(created))
nothing = Pointer()
print_answer("destroy NULL", library.dll.cudnnBackendDestroyDescriptor(nothing))
print_answer("finalize NULL", library.finalize(nothing))
print_answer("initialize NULL", library.dll.cudnnBackendInitialize(nothing))
print_answer("set NULL", library.set(nothing, "TENSOR_DATA_TYPE", "DATA_TYPE", [0]))
print_answer("read NULL", library.get(nothing, "TENSOR_DATA_TYPE", "DATA_TYPE", 1)[0])

# --- tensors ---

TENSOR: Attributes = {
    "TENSOR_DATA_TYPE": ("DATA_TYPE", [0]),
    "TENSOR_DIMENSIONS": integers(2, 4, 8, 8),
    "TENSOR_STRIDES": integers(256, 64, 8, 1),
    "TENSOR_UNIQUE_ID": integers(5),
    "TENSOR_BYTE_ALIGNMENT": integers(16),
}
print_each_missing("TENSOR", TENSOR)
for label, change in {
    "three strides": {"TENSOR_STRIDES": integers(64, 8, 1)},
    "a dimension of 0": {"TENSOR_DIMENSIONS": integers(2, 0, 8, 8)},
    "a dimension below 0": {"TENSOR_DIMENSIONS": integers(2, -4, 8, 8)},
    "a stride of 0": {"TENSOR_STRIDES": integers(256, 64, 0, 1)},
    "a stride below 0": {"TENSOR_STRIDES": integers(-256, 64, 8, 1)},
    "strides that overlap": {"TENSOR_STRIDES": integers(1, 1, 1, 1)},
    "one dimension": {"TENSOR_DIMENSIONS": integers(2), "TENSOR_STRIDES": integers(1)},
    "many dimensions": {"TENSOR_DIMENSIONS": integers(*[1] * 8), "TENSOR_STRIDES": integers(*[1] * 8)},
    "large dimensions": {"TENSOR_DIMENSIONS": integers(2**40, 2**20, 8, 8)},
    "no dimensions given": {"TENSOR_DIMENSIONS": integers()},
    "an odd alignment": {"TENSOR_BYTE_ALIGNMENT": integers(3)},
    "an alignment below the type's": {"TENSOR_BYTE_ALIGNMENT": integers(2)},
    "an alignment of 0": {"TENSOR_BYTE_ALIGNMENT": integers(0)},
    "an alignment of 12": {"TENSOR_BYTE_ALIGNMENT": integers(12)},
    "an id below 0": {"TENSOR_UNIQUE_ID": integers(-1)},
    "virtual": {"TENSOR_IS_VIRTUAL": ("BOOLEAN", [True])},
    "by value": {"TENSOR_IS_BY_VALUE": ("BOOLEAN", [True])},
    "vectorized": {"TENSOR_VECTOR_COUNT": integers(4), "TENSOR_VECTORIZED_DIMENSION": integers(1)},
    "vectorized beyond": {"TENSOR_VECTORIZED_DIMENSION": integers(7)},
    "half": {"TENSOR_DATA_TYPE": ("DATA_TYPE", [2]), "TENSOR_BYTE_ALIGNMENT": integers(2)},
    "a wrong type": {"TENSOR_DATA_TYPE": integers(0)},
    "another wrong type": {"TENSOR_DIMENSIONS": ("INT32", [2, 4, 8, 8])},
    "two data types": {"TENSOR_DATA_TYPE": ("DATA_TYPE", [0, 0])},
    "an attribute of another kind": {"CONVOLUTION_COMP_TYPE": ("DATA_TYPE", [0])},
}.items():
    print_statuses(label, "TENSOR", TENSOR, **change)
print_values(
    "TENSOR",
    TENSOR,
    [
        *(("TENSOR_DATA_TYPE", "DATA_TYPE", requested) for requested in (1, 0, 2, -1)),
        ("TENSOR_DATA_TYPE", "INT64", 1),
        *(("TENSOR_DIMENSIONS", "INT64", requested) for requested in (4, 8, 3, 0, -1)),
        ("TENSOR_STRIDES", "INT64", 8),
        ("TENSOR_UNIQUE_ID", "INT64", 1),
        ("TENSOR_BYTE_ALIGNMENT", "INT64", 1),
        ("TENSOR_IS_VIRTUAL", "BOOLEAN", 1),
        ("TENSOR_IS_BY_VALUE", "BOOLEAN", 1),
        ("TENSOR_VECTOR_COUNT", "INT64", 1),
        ("TENSOR_VECTORIZED_DIMENSION", "INT64", 1),
        ("CONVOLUTION_COMP_TYPE", "DATA_TYPE", 1),
    ],
)
print_values("TENSOR", {**TENSOR, "TENSOR_UNIQUE_ID": integers()}, [("TENSOR_UNIQUE_ID", "INT64", 1)])
tensor, _ = make("TENSOR", TENSOR)
print_answer(
    "an unknown attribute",
    (library.set(tensor, 99999, "INT64", [1]), library.get(tensor, 99999, "INT64", 1)[0]),
)
print_answer("finalize twice", library.finalize(tensor))
print_answer("set once finalized", library.set(tensor, "TENSOR_UNIQUE_ID", "INT64", [6]))
print_answer("read into NULL", library.get(tensor, "TENSOR_DIMENSIONS", "INT64", 4, room=0))
_, opened = library.create("TENSOR")
for count in (0, -1, 1):
    values = None if count == 1 else [0]
    print_answer(
        f"set {count} of {values}", library.set(opened, "TENSOR_DATA_TYPE", "DATA_TYPE", values, count)
    )

# --- convolutions ---

print_each_missing("CONVOLUTION", CONVOLUTION)
for label, change in {
    "three dimensions": {"CONVOLUTION_SPATIAL_DIMS": integers(3)},
    "no dimensions": {"CONVOLUTION_SPATIAL_DIMS": integers(0)},
    "dimensions below 0": {"CONVOLUTION_SPATIAL_DIMS": integers(-1)},
    "three paddings": {"CONVOLUTION_PRE_PADDINGS": integers(1, 1, 1)},
    "one padding": {"CONVOLUTION_PRE_PADDINGS": integers(1)},
    "a padding below 0": {"CONVOLUTION_PRE_PADDINGS": integers(-1, 1)},
    "a dilation of 0": {"CONVOLUTION_DILATIONS": integers(0, 1)},
    "a stride of 0": {"CONVOLUTION_FILTER_STRIDES": integers(0, 1)},
    "other paddings after": {"CONVOLUTION_POST_PADDINGS": integers(2, 1)},
    "another compute type": {"CONVOLUTION_COMP_TYPE": ("DATA_TYPE", [9])},
    "a wrong type": {"CONVOLUTION_PRE_PADDINGS": ("INT32", [1, 1])},
}.items():
    print_statuses(label, "CONVOLUTION", CONVOLUTION, **change)
print_values(
    "CONVOLUTION",
    CONVOLUTION,
    [
        *(
            (name, type_, requested)
            for name, (type_, _) in CONVOLUTION.items()
            for requested in (1, 2, 3, 0)
            if name != "CONVOLUTION_CONV_MODE"  # NVIDIA's library reads it as a data type alone
        )
    ],
)

# --- operations ---


one_dimensional, _ = make(
    "CONVOLUTION",
    {name: (type_, values[:1]) for name, (type_, values) in CONVOLUTION.items()},
    CONVOLUTION_SPATIAL_DIMS=integers(1),
)
after, _ = make("CONVOLUTION", CONVOLUTION, CONVOLUTION_POST_PADDINGS=integers(2, 1))
for kind, (prefix, names) in OPERATIONS.items():
    X, W, OUT = (prefix + name for name in names)
    CONV, ALPHA, BETA = (prefix + name for name in ("CONV_DESC", "ALPHA", "BETA"))
    operation: Attributes = {
        X: descriptors(x),
        W: descriptors(w),
        OUT: descriptors(y),
        CONV: descriptors(convolution),
        ALPHA: ("FLOAT", [2.5]),
        BETA: ("FLOAT", [0.5]),
    }
    print_each_missing(kind, operation)
    for label, change in {
        "a double alpha": {ALPHA: ("DOUBLE", [1.0])},
        "two alphas": {ALPHA: ("FLOAT", [1.0, 1.0])},
        "an open tensor": {X: descriptors(opened)},
        "another width of y": {OUT: descriptors(make_tensor(3, 2, 6, 8, 7))},
        "other channels of y": {OUT: descriptors(make_tensor(3, 2, 5, 8, 8))},
        "another mini-batch of y": {OUT: descriptors(make_tensor(3, 3, 6, 8, 8))},
        "another rank of y": {OUT: descriptors(make_tensor(3, 2, 6, 8, 8, 1))},
        "another type of y": {OUT: descriptors(make_tensor(3, *Y, type_=2))},
        "channels that do not divide": {W: descriptors(make_tensor(2, 6, 5, 3, 3))},
        "two groups": {W: descriptors(make_tensor(2, 6, 2, 3, 3))},
        "groups that do not divide": {W: descriptors(make_tensor(2, 6, 1, 3, 3))},
        "one id twice": {OUT: descriptors(make_tensor(1, *Y))},
        "channels last": {X: descriptors(make_tensor(1, 2, 4, 8, 8, strides=(256, 1, 32, 4)))},
        "gaps": {X: descriptors(make_tensor(1, 2, 4, 8, 8, strides=(512, 64, 8, 1)))},
        "a convolution of one dimension": {CONV: descriptors(one_dimensional)},
        "other paddings after": {CONV: descriptors(after), OUT: descriptors(make_tensor(3, 2, 6, 9, 8))},
        "a virtual tensor": {X: descriptors(make_tensor(1, 2, 4, 8, 8, virtual=True))},
    }.items():
        print_statuses(label, kind, operation, **change)
    print_values(
        kind, operation, [(ALPHA, "FLOAT", 1), (ALPHA, "DOUBLE", 1), (BETA, "FLOAT", 1), (BETA, "FLOAT", 0)]
    )
    _, late = library.create("TENSOR")
    for name, attribute in TENSOR.items():
        library.set(late, name, *attribute)
    _, early = library.create(kind)
    statuses = [
        library.set(early, name, *attribute)
        for name, attribute in {**operation, X: descriptors(late)}.items()
    ]
    finalized = library.finalize(late), library.finalize(early)
    print_answer(f"{kind} a tensor that is finalized later", (statuses, finalized))
    if kind != FORWARD:  # from here on NVIDIA's answers differ between the passes
        continue
    print_values(kind, {**operation, ALPHA: ("DOUBLE", [2.5])}, [(ALPHA, "FLOAT", 1), (ALPHA, "DOUBLE", 1)])
    for label, change in {
        "an integer alpha": {ALPHA: integers(1)},
        "a tensor of a wrong type": {X: integers(1)},
        "no tensor given": {X: descriptors()},
        "an attribute of another pass": {"OPERATION_CONVOLUTION_BWD_DATA_W": descriptors(w)},
    }.items():
        print_statuses(label, kind, operation, **change)

print_each_missing("POINTWISE", POINTWISE)
for label, change in {
    "a wrong type": {"POINTWISE_MODE": integers(0)},
    "parameters of other functions": {
        **{f"POINTWISE_{name}": ("DOUBLE", [1.0]) for name in ("ELU_ALPHA", "SOFTPLUS_BETA", "SWISH_BETA")},
        "POINTWISE_AXIS": integers(1),
    },
}.items():
    print_statuses(label, "POINTWISE", POINTWISE, **change)
print_values("POINTWISE", POINTWISE, [(name, type_, 1) for name, (type_, _) in POINTWISE.items()])

for attributes in (RELU, ADD):
    print_each_missing("OPERATION_POINTWISE", attributes)
for label, change in {
    "a bias of other channels": {PB: descriptors(make_tensor(4, 1, 5, 1, 1))},
    "a bias of another rank": {PB: descriptors(make_tensor(4, 1, 6, 1))},
    "a bias as x": {PX: descriptors(bias), PB: descriptors(like_y)},
    "a bias of another type": {PB: descriptors(make_tensor(4, 1, 6, 1, 1, type_=2))},
    "a smaller y": {PY: descriptors(bias)},
    "an open tensor": {PB: descriptors(opened)},
    "two tensors": {PB: descriptors(bias, bias)},
    "a wrong type": {PB: integers(1)},
    "a float factor": {"OPERATION_POINTWISE_ALPHA1": ("FLOAT", [2.0])},
    "a double factor": {"OPERATION_POINTWISE_ALPHA2": ("DOUBLE", [2.0])},
    "an integer factor": {"OPERATION_POINTWISE_ALPHA1": integers(2)},
}.items():
    print_statuses(label, "OPERATION_POINTWISE", ADD, **change)
print_values("OPERATION_POINTWISE", ADD, [("OPERATION_POINTWISE_ALPHA1", "FLOAT", 1), (PB, DESCRIPTOR, 1)])
